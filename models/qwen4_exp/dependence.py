"""What each op of the decoder depends on, twice: read off the contracts, and measured by changing one thing at a time.

    python -m capwise.models.qwen4_exp.dependence        prints the table of docs/dependence.md

X: a change there changes a live row or owned state. Columns are perturbed one at a time with the pools held fixed: what
an op reads of what another one wrote is not in the table.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from capwise.models.qwen4_exp.batch import Request, build_batch
from capwise.models.qwen4_exp.config import Config
from capwise.models.qwen4_exp.decoder import STATE, Decoder, metadata
from capwise.models.qwen4_exp.layers import Metadata, ops
from capwise.ops.contract import declared

# Columns that are no inputs, then the inputs.
EARLIER, OTHERS, PAD_ROWS, PAD_T, PAD_R = "earlier rows", "other requests", "pad rows", "pad T", "pad R"
INPUTS = (
    "query_start_loc", "seq_lens", "state_table", "num_accepted", "has_initial", "is_spec", "block_table",
    "slot_mapping", "positions", "ngram_context",
)  # fmt: skip
COLUMNS = (EARLIER, OTHERS, PAD_ROWS, PAD_T, PAD_R, *INPUTS)
TINY = Config.tiny(num_hidden_layers=4)
NUM_SPEC, PAGE, BLOCKS, SLOTS = 2, 8, 40, 30
Values = Mapping[str, torch.Tensor]
Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Row:
    """One line of the table: what runs, and the activations [T, width] that it takes; width 0: token ids [T]."""

    name: str
    run: Callable[[Decoder, Values], Outputs]
    widths: Mapping[str, int]


def _step(model: Decoder, v: Values) -> Metadata:
    """Metadata as the decoder makes it; the slots of the caches are given, since they are a column of their own."""
    requests = [v[name] for name in ("query_start_loc", "seq_lens", "block_table", *INPUTS[2:6])]
    made = metadata(model.config, model.pools, v["extent"], v["positions"], *requests)
    return made._replace(slot_mapping=v["slot_mapping"])


def _requests(v: Values) -> tuple[torch.Tensor, ...]:
    slots = v["state_table"][:, 0]
    return v["query_start_loc"], slots, v["has_initial"], v["num_accepted"], v["is_spec"]


def _embed(m: Decoder, v: Values) -> Outputs:
    return (torch.cat([F.embedding(v["ids"], m.embed)] * m.config.hc_count, dim=1),)


def _read(m: Decoder, v: Values) -> Outputs:
    return m.layers[0].mixer_connection.read(v["x"])


def _write(m: Decoder, v: Values) -> Outputs:
    return (ops.hc_write(v["x"], v["y"], v["j"]),)


def _hashed(m: Decoder, v: Values) -> Outputs:
    return (m.layers[1].ple.ids.hashed(v["ids"], torch.stack([v["one"], v["two"]], 1).long()),)


def _gathered(m: Decoder, v: Values) -> Outputs:
    return (ops.ple_table_gather(v["ids"][:, None].long(), m.layers[1].ple.table),)


def _gate(m: Decoder, v: Values) -> Outputs:
    ple, config = m.layers[1].ple, m.config
    key, value = ple.key_value(v["e"]).split([config.width, config.hidden_size], dim=1)
    norms = (ple.norm_key, ple.norm_query, ple.norm_conv)
    return ops.ple_gate(key, value, v["x"], *norms, config.rms_norm_eps, config.hc_count)


def _gdn_conv(m: Decoder, v: Values) -> Outputs:
    mixer = m.layers[0].mixer
    out = ops.gdn_conv(v["mixed"], mixer.conv_weight, mixer.conv_state, *_requests(v))
    ops.gdn_conv_state_(v["mixed"], mixer.conv_state, *_requests(v), m.config.gdn_conv_state)
    return (out,)


def _scan(m: Decoder, v: Values) -> Outputs:
    c = m.config
    q, k, value = v["mixed"].split([c.key_width, c.key_width, c.value_width], dim=1)
    keys, heads = (c.linear_num_key_heads, c.linear_key_head_dim), c.linear_num_value_heads
    starts, _, has, accepted, spec = _requests(v)
    gates = (-v["gates"][:, :heads].abs(), v["gates"][:, heads:].sigmoid())
    parts = (q.unflatten(1, keys), k.unflatten(1, keys), value.unflatten(1, (heads, c.linear_value_head_dim)))
    return (ops.gdn_scan_(*parts, *gates, m.layers[0].mixer.state, starts, v["state_table"], has, accepted, spec),)


def _short_conv(m: Decoder, v: Values) -> Outputs:
    starts, _, *rest = _requests(v)
    return (m.layers[1].ple.short_conv(v["x"], starts, v["state_table"], *rest),)


def _kv(m: Decoder, v: Values) -> Outputs:
    mixer, (heads, kv_heads, width) = m.layers[3].mixer, m.layers[3].mixer.heads
    q, k, value = v["q"].unflatten(1, (heads, width)), *v["kv"].unflatten(1, (2 * kv_heads, width)).chunk(2, dim=1)
    sections = list(m.config.mrope_section)
    places = (v["positions"], mixer.inv_freq, v["slot_mapping"], mixer.kv_cache, sections)
    return (ops.mrope_kv_write_(q, k, value, *places),)


def _compress(m: Decoder, v: Values) -> Outputs:
    mixer, step, c = m.layers[3].mixer, _step(m, v), m.config
    ops.qsa_compress_(
        v["key"], step.positions, mixer.ring, mixer.ring_positions, mixer.index_k_norm, mixer.inv_freq,
        step.query_start_loc, step.seq_lens, step.slots, step.block_table, mixer.block_keys,
        list(c.mrope_section), c.rms_norm_eps, c.indexer_compress_ratio,
    )  # fmt: skip
    return ()


def _commit(m: Decoder, v: Values) -> Outputs:
    mixer = m.layers[3].mixer
    where = (v["query_start_loc"], v["seq_lens"], v["state_table"][:, 0])
    ops.qsa_commit_(v["key"], v["positions"], mixer.ring, mixer.ring_positions, *where)
    return ()


def _select(m: Decoder, v: Values) -> Outputs:
    mixer, step, c = m.layers[3].mixer, _step(m, v), m.config
    index_q = v["index_q"].unflatten(1, (c.indexer_n_heads, c.indexer_head_dim))
    token = (step.token_to_req, step.logical_pos, step.block_table, c.indexer_compress_ratio)
    scores = ops.qsa_scores(index_q, mixer.block_keys, *token)
    return (ops.top_blocks(scores, c.blocks_per_query, step.visible),)


def _attention(m: Decoder, v: Values) -> Outputs:
    """Which blocks were chosen is an activation: block 0 of every request that has one."""
    mixer, step, c = m.layers[3].mixer, _step(m, v), m.config
    chosen = torch.where(v["chosen"] > 1e9, -1, 0).to(torch.int32)
    token = (step.token_to_req, step.logical_pos, step.block_table, c.indexer_compress_ratio)
    q = v["q"].unflatten(1, (c.num_attention_heads, c.head_dim))
    return (ops.sparse_attention(q, mixer.kv_cache, chosen, *token, c.attention_scale),)


def _rows() -> tuple[Row, ...]:
    c = TINY
    heads = c.num_attention_heads * c.head_dim
    kv, index = 2 * c.num_key_value_heads * c.head_dim, c.indexer_head_dim
    hidden, width, mixed = c.hidden_size, c.width, c.gdn_conv_width
    return (
        Row("embed_tokens (+ copy to the streams)", _embed, {"ids": 0}),
        Row("hc read: norm, down, up, mix, inject", _read, {"x": width}),
        Row("hc write", _write, {"x": width, "y": hidden, "j": c.hc_count}),
        Row("moe router + experts + shared", lambda m, v: (m.layers[0].experts(v["u"]),), {"u": hidden}),
        Row(
            "ple n-gram ids",
            lambda m, v: (m.layers[1].ple.ids(v["ids"], v["query_start_loc"], v["ngram_context"]),),
            {"ids": 0},
        ),
        Row(
            "ple predecessors, once a step",
            lambda m, v: (ops.ple_predecessors(v["ids"], v["query_start_loc"], v["ngram_context"], c.eos_token_id),),
            {"ids": 0},
        ),
        Row("ple n-gram ids, of predecessors", _hashed, {"ids": 0, "one": 0, "two": 0}),
        Row("ple table gather", _gathered, {"ids": 0}),
        Row("ple projections + gate + norm", _gate, {"e": c.ple_embed_dim, "x": width}),
        Row("ple short conv", _short_conv, {"x": width}),
        Row("gdn in_proj", lambda m, v: (F.linear(v["u"], m.layers[0].mixer.in_proj),), {"u": hidden}),
        Row("gdn conv1d", _gdn_conv, {"mixed": mixed}),
        Row("gdn delta-rule scan", _scan, {"mixed": mixed, "gates": 2 * c.linear_num_value_heads}),
        Row("gdn out_proj", lambda m, v: (F.linear(v["o"], m.layers[0].mixer.out_proj),), {"o": c.value_width}),
        Row(
            "indexer rope",
            lambda m, v: (
                ops.mrope(
                    v["q"].unflatten(1, (c.indexer_n_heads, index)),
                    v["positions"], m.layers[3].mixer.inv_freq, list(c.mrope_section),
                ),
            ),
            {"q": c.indexer_n_heads * index},
        ),  # fmt: skip
        Row("rope + kv cache write", _kv, {"q": heads, "kv": kv}),
        Row("qsa compress groups", _compress, {"key": index}),
        Row("qsa raw-key ring write", _commit, {"key": index}),
        Row("qsa score + top-k", _select, {"index_q": c.indexer_n_heads * index}),
        Row("expand + sparse paged attention", _attention, {"q": heads, "chosen": c.blocks_per_query}),
        Row("attn o_proj", lambda m, v: (F.linear(v["o"], m.layers[3].mixer.out_proj),), {"o": heads}),
        Row("final mixer", lambda m, v: m.final.read(v["x"])[:1], {"x": width}),
        Row(
            "logits rows + head",
            lambda m, v: (F.linear(ops.logits_rows(v["h"], v["query_start_loc"], v["is_spec"], 1 + NUM_SPEC), m.head),),
            {"h": hidden},
        ),
    )


ROWS = _rows()


# ------------------------------------------------------------------------------------------------------- by execution
def model() -> Decoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Decoder(TINY, SLOTS, BLOCKS, PAGE, NUM_SPEC)
    made.fill_state_(torch.Generator().manual_seed(0))
    return made


def requests() -> list[Request]:
    """A prompt, a later chunk, a decode and a verify chunk after one that kept two."""
    tokens = [(7 * i + 5) % TINY.vocab_size for i in range(40)]
    return [
        Request(tokens, 0, 5, [1, 2, 3], [1, 2]),
        Request(tokens, 9, 6, [4, 5, 6], [3, 4]),
        Request(tokens, 14, 1, [7, 8, 9], [5, 6]),
        Request(tokens, 17, 3, [10, 11, 12], [7, 8, 9], verify=True, accepted=2),
    ]


def _inputs(pad: tuple[int, int] = (0, 0)) -> dict[str, torch.Tensor]:
    batch = build_batch(requests(), TINY, NUM_SPEC, page_size=PAGE, max_blocks=4, pad=pad)
    batch["extent"] = batch.pop("input_ids")
    token, position = ops.token_requests(batch["query_start_loc"], batch["seq_lens"], batch["extent"])
    batch["slot_mapping"] = ops.slot_mapping(token, position, batch["block_table"], PAGE)
    return batch


def _activations(row: Row, rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = {}
    for i, (name, width) in enumerate(sorted(row.widths.items())):
        random = torch.Generator().manual_seed(100 * seed + i)
        if width:
            made[name] = torch.randn(64, width, generator=random)[:rows]
        else:
            made[name] = torch.randint(4, TINY.vocab_size, (64,), generator=random, dtype=torch.int32)[:rows]
    return made


def _changed(inputs: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The step with one input different, and as good as before."""
    value = inputs[name].clone()
    if name == "query_start_loc":
        value[1] -= 1
    elif name == "seq_lens":
        value[1] += 1
    elif name == "state_table":
        value[1], value[3] = torch.tensor([20, 21, 22]), torch.tensor([23, 24, 25])
    elif name == "num_accepted":
        value[3] = 1
    elif name in ("has_initial", "is_spec"):
        value = ~value
    elif name == "block_table":
        value[1, :2], value[3, :3] = torch.tensor([20, 21]), torch.tensor([22, 23, 24])
    elif name == "slot_mapping":
        value[6] = 25 * PAGE
    elif name == "positions":
        value = value + torch.tensor([[1], [2], [3]])
    else:
        value = value + 1
    return {**inputs, name: value}


def _run(row: Row, template: Decoder, values: Mapping[str, torch.Tensor]) -> tuple[Outputs, dict[str, torch.Tensor]]:
    """Outputs, and state after the run without the null rows."""
    mine = copy.deepcopy(template, {id(p): p for p in template.parameters()})
    with torch.no_grad():
        outs = tuple(out for out in row.run(mine, values) if out is not None)
    state = {n: b[1:] for n, b in mine.named_buffers() if n.rpartition(".")[2] in STATE}
    return outs, state


def measured(row: Row, template: Decoder) -> dict[str, bool]:
    """Column -> whether a change there changed a live row or owned state."""
    inputs = _inputs()
    tokens, starts = inputs["extent"].shape[0], inputs["query_start_loc"].tolist()
    plain, noise = _activations(row, tokens), _activations(row, tokens, 1)
    right, state = _run(row, template, {**plain, **inputs})

    def differs(values: Mapping[str, torch.Tensor], rows: slice | None = None, owned: bool = True) -> bool:
        outs, after = _run(row, template, values)
        for out, want in zip(outs, right):
            at = slice(0, want.shape[0]) if rows is None or want.shape[0] != tokens else rows
            if not torch.allclose(out[: want.shape[0]][at].double(), want[at].double(), rtol=0, atol=1e-5):
                return True
        return owned and any(not torch.equal(after[n], state[n]) for n in state)

    def with_rows(where: slice) -> dict[str, torch.Tensor]:
        mixed = {n: v.clone() for n, v in plain.items()}
        for name, value in mixed.items():
            value[where] = noise[name][where]
        return {**mixed, **inputs}

    later = slice(starts[1], starts[2] - 1)
    last = slice(starts[2] - 1, starts[2])
    found = {EARLIER: differs(with_rows(later), last, owned=False)}
    found[OTHERS] = differs(with_rows(slice(starts[2], tokens)), slice(0, starts[2]), owned=False)
    padded = _inputs((3, 0))
    found[PAD_T] = differs({**_activations(row, tokens + 3), **padded})
    wild = {n: v.clone() for n, v in _activations(row, tokens + 3).items()}
    for name, value in wild.items():
        value[tokens:] = _activations(row, tokens + 3, 2)[name][tokens:]
    padded["positions"][:, tokens:] = 77
    found[PAD_ROWS] = differs({**wild, **padded})
    found[PAD_R] = differs({**plain, **_inputs((0, 2))})
    for name in INPUTS:
        found[name] = differs({**plain, **_changed(inputs, name)})
    return {column: found[column] for column in COLUMNS}


# ------------------------------------------------------------------------------------------------------- by contracts
def derived(row: Row, template: Decoder) -> dict[str, bool]:
    """Column -> whether, by the contracts of the ops that run, it may reach a live row or owned state.

    An input reaches what an op returns or writes iff the op takes it, or something that it reached. Rows of one request
    see earlier ones iff an op between them is not row-local; what an op returns per request holds all requests. Padding
    shows iff a contract leaves a padded argument out.
    """
    inputs = _inputs()
    values = {**_activations(row, inputs["extent"].shape[0]), **inputs}
    names = list(values)
    mine = copy.deepcopy(template)
    with torch.no_grad():
        graph = make_fx(lambda *given: row.run(mine, dict(zip(names, given))))(*values.values()).graph
    reach: dict[fx.Node, frozenset[str]] = {}
    places = dict(zip(names, graph.find_nodes(op="placeholder")))
    for name, node in places.items():
        reach[node] = frozenset({name if name in INPUTS else "own rows" if name in row.widths else ""}) - {""}
    ends: set[str] = set()
    for node in graph.nodes:
        if node.op == "call_function":
            reach[node] = frozenset(_through(node, reach))
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                ends |= {r for r in reach[node] if r != EARLIER}
        elif node.op == "output":
            ends |= {r for a in node.all_input_nodes for r in reach.get(a, ())}
    return {column: column in ends for column in COLUMNS}


def _through(node: fx.Node, reach: Mapping[fx.Node, frozenset[str]]) -> Iterator[str]:
    """What reaches an op's results."""
    contract = declared(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    taken = {r for a in node.all_input_nodes for r in reach.get(a, ())}
    yield from taken
    if contract is None or "own rows" not in taken:
        return
    results = [axes for name, axes in contract.arguments.items() if name.startswith("out")]
    if contract.locality in ("prefix", "segment") and any(axes.axes[:1] == ("T",) for axes in results):
        yield EARLIER
    if contract.locality == "global" or any(axes.axes[:1] == ("R",) for axes in results):
        yield OTHERS
    known = contract.arguments
    schema = {a.name: a for a in node.target._schema.arguments}
    if any(isinstance(v, fx.Node) and n not in known and reach.get(v) for n, v in zip(schema, node.args)):
        yield from (PAD_ROWS, PAD_T, PAD_R)


# -------------------------------------------------------------------------------------------------------------- table
def table(found: Mapping[str, Mapping[str, bool]]) -> str:
    """Markdown: a row an op, X where it depends."""
    lines = [f"| op | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, columns in found.items():
        lines.append(f"| {name} | {' | '.join('X' if columns[c] else '.' for c in COLUMNS)} |")
    return "\n".join(lines)


def all_measured() -> dict[str, dict[str, bool]]:
    template = model()
    return {row.name: measured(row, template) for row in ROWS}


def all_derived() -> dict[str, dict[str, bool]]:
    template = model()
    return {row.name: derived(row, template) for row in ROWS}


def request_bound(found: Mapping[str, Mapping[str, bool]]) -> set[str]:
    """Ops that something beside their own row and its position changes."""
    own = {"positions"}
    return {name for name, columns in found.items() if any(columns[c] for c in COLUMNS if c not in own)}


def page() -> str:
    """docs/dependence.md."""
    return _PAGE.format(table=table(all_measured()))


_PAGE = """# What each op of the decoder depends on

Printed by `python -m capwise.models.qwen4_exp.dependence`; a test holds it against the contracts of the ops, which must
say the same. X: a change there, with everything else held, changes a live row or owned state. "pad rows" is noise in
rows past the live tokens, "pad T" three such rows, "pad R" two requests that are not there. Pools are held fixed: that
attention reads what the cache write wrote is not in the table.

{table}

Never an X under "pad": that is the padding contract. Rows with an X beside positions are what needs requests, slots or
pages; all others may be recorded with the padded number of tokens alone, whatever the requests.
"""


def main() -> None:
    print(page(), end="")


if __name__ == "__main__":
    main()
