"""Qwen4Exp, the parts that capwise serves so far: the n-gram path (PLE) and its batches."""

from capwise.models.qwen4_exp.batch import Request, build_batch, input_axes
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.ple import PLE, NgramIds, ShortConv

__all__ = ["PLE", "Config", "NgramIds", "Request", "ShortConv", "build_batch", "input_axes"]
