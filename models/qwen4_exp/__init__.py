"""Qwen4Exp as it is served: configuration, flat steps, decoder, weights."""

from capwise.models.qwen4_exp.batch import Request, build_batch, input_axes
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.decoder import Decoder
from capwise.models.qwen4_exp.engine import Engine
from capwise.models.qwen4_exp.mtp import DraftLayer
from capwise.models.qwen4_exp.ple import PLE, NgramIds, ShortConv
from capwise.models.qwen4_exp.pool import Pool, PoolError
from capwise.models.qwen4_exp.schedule import Schedule
from capwise.models.qwen4_exp.serving_cases import cases
from capwise.models.qwen4_exp.weights import LoadError, load_state_dict, to_transformers

__all__ = [
    "PLE",
    "Config",
    "Decoder",
    "DraftLayer",
    "Engine",
    "LoadError",
    "NgramIds",
    "Pool",
    "PoolError",
    "Request",
    "Schedule",
    "ShortConv",
    "build_batch",
    "cases",
    "input_axes",
    "load_state_dict",
    "to_transformers",
]
