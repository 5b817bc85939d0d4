"""Random small programs: a table of statements, a generator over it, a history of batches, and what must hold.

A program is straight-line Python over named values. A row of the table reads `kind: statements`: the last statement is
the value, `{T8}` an operand of that kind, `{=T8}` one whose bits do not depend on rounding (what compares or sorts
needs one, or eager and replay may differ by a rounding), `{~T8}` one in memory of the program's own, which the row
writes. `$a` is a local name. A row of kind `!` has no value.

Kinds: T8 is float32 [T, 8]; 24 is [2, 4]; M2 is [2*T, 4], T-major, and H2 the same head-major; `i` and `b` lead
integers and bools. ids are rows of `table`; seg are request numbers; qsl are boundaries.
"""

from __future__ import annotations

import linecache
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import capwise

LOCAL = """
T8: torch.relu({T8})
T8: -{T8}
T8: {T8} + {T8}
T8: {T8} * 0.5
T8: {T8}.clamp(-1, 1) * {T8}
T8: {T8} + self.bias
T8: torch.where({=T8} > 0, {T8}, {T8})
T8: {T8}.masked_fill({bT}[:, None], 0.25)
T8: torch.cat([{T4}, {T4}], -1)
T8: {T8}.chunk(2, -1)[1].repeat(1, 2)
T8: torch.stack([{T4}, {T4}], 1).flatten(1)
T8: F.pad({T4}, (2, 2))
T8: {T8}.flip(-1)
T8: {T8}.roll(1, -1)
T8: {T8}.sort(-1).values
T8: {T8}.double().float()
T8: {=T8}.half().float()
T8: {T8}.cumsum(-1) * 0.25
T8: torch.zeros_like({T8}) + {T8}
T8: torch.ones(T, 8) - {T8}
T8: $a = torch.empty_like({T8.1}); torch.sub({T8.1}, {T8}, out=$a); $a
T8: $a = {T8}.clone(); $a[:, :4] += {T4}; $a
T8: $a = {T8}.clone(); $a[:, 0:4].copy_($a[:, 4:8]); $a
T8: $a = {T8}.clone(); $a[:, 1::2].zero_(); $a
T8: $a = {T8}.clone(); $a[:, 3] = {T}; $a
T8: $a = {T8} * 1; $a.view(T, 2, 4)[:, 1].add_({T4}); $a
T8: $a = torch.zeros(T, 8); $a[:, 2:6] = {T4}; $a
T8: $a = torch.full((T, 8), 0.5); $a.t().mul_({8T}); $a
T8: $a = {8T}.clone(); $a.t()
T8: {T}[:, None].expand(-1, 8) + {T8}
T8: {T}[:, None] * {T8}
T8: {T24}.transpose(1, 2).reshape(T, 8)
T8: {T24}.permute(0, 2, 1).flatten(1).clone()
T8: {8T}.t().contiguous()
T8: {M2}.reshape(T, 8)
T8: {H2}.view(2, T, 4).transpose(0, 1).reshape(T, 8)
T8: F.embedding({ids}, self.table)
T8: self.table[{ids}]
T8: self.table.index_select(0, {ids})
T8: F.one_hot({ids} % 8, 8).float()
T8: {iT}.float()[:, None] * 0.125 + {T8}
T8: {T8}.to(torch.int32).float()
T8: torch.addcmul({T8}, {T8}, {T8.2}, value=0.125).clamp(-4, 4)
T8: {T8}.gather(1, ({ids} % 8)[:, None].expand(-1, 8))
T8: {T8} / 4
T8: {T8}.lerp({T8}, 0.5)
T8: torch.minimum({T8}, {T8})
T8: torch.maximum({T8}, self.bias)
T8: {T8} * torch.tensor(0.5)
M2: {M2} + 1
M2: torch.relu({M2}) + {M2}
H2: {H2} * 0.5 + {H2}
T24: {T24} + {T24}
T24: {T8}.view(T, 4, 2).transpose(1, 2).contiguous()
8T: {8T} + {8T}
8T: {8T} * self.bias[:, None]
8T: torch.relu({8T})
T4: {T4} - {T4}
T4: {T8}[:, :4] * {T8}[:, 4:]
T4: {T24}.amax(1)
T: {T8}.amax(-1)
T: {T} + {T}
T: {T8} @ self.ones
T: {T24}.flatten(1).amin(1)
T: {iT}.float() * 0.25
T: torch.where({bT}, {T}, 0.0)
iT: {=T8}.argmax(-1)
iT: {ids} + 1
iT: {iT} - {ids}
iT: {bT}.long()
ids: {ids} // 2
ids: ({ids} * 3 + 1) % 12
ids: ({iT} % 12).to(torch.int64)
bT: {=T} > 0
bT: ({=T8} > 0).any(-1)
bT: {ids} == 3
bT: ~{bT}
bT: {bT} & {bT}
bT: ({=T8} < 0).sum(-1) > 4
T8: $a, $b = {T8}.split([2, 6], -1); torch.cat([$b, $a], -1)
T8: {T8}.unsqueeze(0).expand(2, -1, -1).sum(0)
T8: torch.stack([{T8}, {T8}], -1).amax(-1)
T8: {T8}.reshape(1, T, 8).squeeze(0) + 0.5
T8: {8T}.unsqueeze(1).transpose(0, 2).flatten(1)
"""

LOSSY_LOCAL = """
T8: F.silu({T8})
T8: torch.tanh({T8})
T8: torch.sigmoid({T8})
T8: {T8}.exp().clamp(max=4)
T8: F.linear({T8}, self.weight)
T8: F.linear({T8}, self.weight, self.bias)
T8: {T8} @ self.weight
T8: torch.addmm(self.bias, {T8}, self.weight)
T8: F.layer_norm({T8}, (8,))
T8: F.rms_norm({T8}, (8,), self.bias)
T8: torch.softmax({T8}, -1)
T8: F.log_softmax({T8}, -1)
T8: $a, $b = {T8}.chunk(2, -1); torch.cat([F.silu($a) * $b, $a], -1)
T8: {T8} / ({T8.1}.norm(dim=-1, keepdim=True) + 1)
T8: F.normalize({T8}, dim=-1)
T8: torch.einsum('td,de->te', {T8}, self.weight)
T8: F.gelu({T8})
T8: F.softplus({T8}) - 1
T8: {T8} * torch.rsqrt({T8}.pow(2).mean(-1, keepdim=True) + 1e-5)
T8: torch.bmm({T24}, {T24}.transpose(1, 2)).flatten(1).repeat(1, 2)
T8: F.layer_norm({T24}, (4,)).reshape(T, 8)
T8: F.scaled_dot_product_attention({T24}[:, None], {T24}[:, None], {T24}[:, None])[:, 0].reshape(T, 8)
M2: torch.softmax({M2}, -1)
H2: torch.tanh({H2})
8T: torch.softmax({8T}, 0)
T: {T8}.mean(-1)
T: {T8}.sum(-1)
T: {T8}.logsumexp(-1)
T: {T8}.var(-1)
T: {T8}.norm(dim=1)
T: {T24}.sum((1, 2))
T24: torch.softmax({T24}, 1)
"""

VIEWS = """
T24: {T8}.view(T, 2, 4)
T24: {T8}.reshape(-1, 2, 4)
M2: {T8}.reshape(2 * T, 4)
M2: {T8}.reshape(-1, 4)
H2: {T8}.view(T, 2, 4).transpose(0, 1).reshape(2 * T, 4)
8T: {T8}.t()
8T: {T8}.transpose(0, 1)
8T: {T8}.permute(1, 0)
T4: {T8}[:, ::2]
T4: {T8}[:, 4:]
T4: {T8}.chunk(2, -1)[0]
T4: {T8}.unflatten(1, (2, 4)).select(1, 1)
T: {T8}[:, 3]
T: {T8}[..., 0]
T: {8T}[2]
T: {T8}.unbind(1)[5]
"""

PREFIX = """
T8: {T8}.cumsum(0) * 0.25
T8: {T8}.cummax(0).values
T8: {T8}.cummin(0)[0]
T8: {T8}.clamp(-1, 1).cumprod(0)
T8: torch.cat([{T8.1}.new_zeros(1, 8), {T8.1}[:-1]])
T8: torch.cat([torch.zeros(2, 8), {T8}])[:T]
T8: F.pad({T8}, (0, 0, 1, 0))[:-1]
T8: F.pad({T8}, (0, 0, 3, 0))[:T]
T8: torch.cat([self.bias[None], {T8}])[:T]
T8: F.conv1d(F.pad({8T}[None], (2, 0)), self.taps, groups=8)[0].t()
T8: F.conv1d(F.pad({8T}[None], (2, 0)), self.taps, self.bias, groups=8)[0].transpose(0, 1)
T8: $a = F.pad({T8}, (0, 0, 2, 0)); $a[2:] * 0.5 + $a[1:-1] * 0.25 + $a[:-2]
T: {T}.cumsum(0) * 0.25
iT: {bT}.cumsum(0)
8T: {8T}.cumsum(1) * 0.25
8T: {8T}.cummax(-1).values
T24: {T24}.cumsum(0) * 0.25
M2: {M2}.cumsum(0) * 0.125
T8: $a = {T8}.clone(); $a[0] = 0.5; $a
T8: {T8} + {T8}[0]
T8: {T8} * torch.arange(T)[:, None] * 0.125
iT: torch.arange(T)
bT: torch.arange(T) < 3
"""

LOSSY_PREFIX = """
T8: {T8}.logcumsumexp(0) * 0.25
"""

MIX = """
8: {T8}.amax(0)
8: {T8}.max(0).values
8: {T8}.min(0)[0]
8: {T8}.amin(0)
8: {R8}.amax(0)
8: {8T}.amax(-1)
8: {T8}[-1]
8: {T8}[T - 1]
8: {8T}[:, -1]
8: {T8}[-1:].sum(0)
8: {T8}[-2:].sum(0)
8: {R8}[-1]
8: {R8}[R - 1]
8: {M2}.amax(0).repeat(2)
8: {H2}.amin(0).repeat(2)
8: {T8}[T // 2]
8: {T8}[: T // 2].sum(0)
8: {T8}[::2].sum(0)
8: {T8}[1:].sum(0)
8: {T8}[1:-1].sum(0)
8: {T8}.aminmax(dim=0).max
8: {T8}.sort(0).values[0]
8: {T8}.sort(0, descending=True).values[0]
8: {T8}.topk(1, 0).values[0]
8: {T8}.topk(1, 0, largest=False).values[0]
8: {T8}.kthvalue(1, 0).values
8: ({=T8} > 0).any(0).float()
8: ({=T8} < 8).all(0).float()
8: ({=T8} > 0).sum(0).float() * 0.125
8: {=T8}.argmax(0).float() * 0.125
8: {=T8}.argmin(0).float() * 0.125
8: torch.count_nonzero({=T8}, 0).float() * 0.125
0: {T8}.max()
0: {R}.amin()
0: ({=T} > 0).any().float()
0: {bT}.all().float()
0: {iT}.max().float() * 0.125
0: {iT}.sum().float() * 0.0625
0: {lens}.max().float() * 0.125
0: {lens}.sum().float() * 0.125
0: {seg}.max().float()
0: query_start_loc[-1].float() * 0.125
0: query_start_loc[R].float() * 0.125
0: {T8}.flatten()[-1]
0: {bT}.sum() * 0.125
T8: {T8} + {8}
T8: {T8} * {0}
T8: {T8} * T * 0.0625
T8: {T8} * R * 0.125
T8: {T8} + T
T8: {T8} / T
T8: {T8} * (1.0 / T)
T8: {T8} * float(T) * 0.125
T8: {T8} - R / 4
T8: {T8}.clamp(max=T - 1)
T8: {T8}.clamp(-R, T)
T8: {T8}.flip(0)
T8: {T8}.roll(1, 0)
T8: torch.roll({T8}, (1, 2), (0, 1))
T8: {T8}.sort(0).values
T8: {T8}.sort(0, descending=True).values
T8: {T8}[{=T}.argsort(stable=True)]
T8: {T8}[{=T}.argsort(descending=True, stable=True)]
T8: $p = {ids}.argsort(stable=True); $a = {T8}[$p] * 0.5; $b = torch.empty_like($a); $b[$p] = $a; $b
T8: $p = {ids}.argsort(stable=True); {T8}[$p][$p.argsort()]
T8: {T8} * (torch.arange(T)[:, None] / T)
T8: {T8} * (torch.arange(T) < T // 2)[:, None]
T8: {T8} * torch.arange(T - 1, -1, -1)[:, None] * 0.125
T8: {T8}.masked_fill((torch.arange(T) >= T - 1)[:, None], 0)
T8: torch.where(torch.arange(T)[:, None] == T - 1, {8}, {T8})
T8: torch.cat([{T8.1}[1:], {T8.1}[:1]])
T8: torch.cat([{T8}, {T8}])[:T]
T8: torch.cat([{T8}, {T8}])[T:]
T8: torch.cat([{T8}, {T8}])[-T:]
T8: F.pad({T8.1}, (0, 0, 0, 1))[1:]
T8: {T8}.repeat(2, 1)[:T]
T8: {T8}.repeat_interleave(2, 0)[:T]
T8: {M2}.reshape(2, T, 4).transpose(0, 1).reshape(T, 8)
T8: ({M2} + {H2}).reshape(T, 8)
T8: {T8}[{ids}.clamp(max=T - 1)]
T8: {T8}[{ids} % T]
T8: {T8}.index_select(0, {ids} % T)
T8: {T8}[-1 - ({ids} % T)]
T8: {T8}.gather(0, ({ids} % T)[:, None].expand(-1, 8))
T8: torch.take_along_dim({T8}, ({ids} % T)[:, None], 0)
T8: {R8}[{seg}]
T8: {R8}.index_select(0, {seg})
T8: {R8}[{seg}.clamp(max=R - 1)]
T8: {R8}[{ids} % R]
T8: {R8}.repeat_interleave({lens}, 0, output_size=T)
T8: {T8} * {R}[{seg}][:, None]
T8: {T8}.masked_fill((torch.arange(T) == query_start_loc[{seg}])[:, None], 0)
T8: {T8}[query_start_loc[{seg}].long()]
T8: {T8} + (torch.arange(T) - query_start_loc[{seg}])[:, None] * 0.125
T8: torch.zeros(T, 8).index_add_(0, {ids} % T, {T8})
T8: torch.zeros(T, 8).scatter_add_(0, ({ids} % T)[:, None].expand(-1, 8), {T8})
T8: torch.zeros(T, 8).index_put((query_start_loc[:-1].long().clamp(max=T - 1),), {R8}, accumulate=True)
T8: $a = {T8}.clone(); $a[-1] = 0.25; $a
T8: $a = {T8}.clone(); $a[-1] += {8}; $a
T8: $a = {T8}.clone(); $a[1:] += {T8}[:-1]; $a
T8: $a = {T8}.clone(); $a[:-1] = 0.5; $a
T8: $a = torch.zeros(T, 8); $a[query_start_loc[1:].long() - 1] = 1.0; $a
T8: $a = {T8}.clone(); $a.index_fill_(0, query_start_loc[:-1].long().clamp(max=T - 1), 0.5); $a
T8: $a = {T8}.clone(); $a[0] = $a[-1]; $a
T8: $a = torch.zeros(64, 8); $a[:T] = {T8}; $a[:T] + {T8}
T8: $a = torch.zeros(T + 1, 8); $a[1:] = {T8}; $a[:-1] + $a[1:]
T8: $a = {R8}.clone(); $a.mul_(T * 0.125); $a[{seg}]
T8: torch.arange(R).repeat_interleave({lens}, output_size=T).float()[:, None] + {T8}
T8: {T8}.flatten().flip(0).view(T, 8)
T8: {T8}.flatten().cumsum(0).view(T, 8) * 0.0625
T8: {8T}.flatten().cumsum(0).view(8, T).t() * 0.0625
T8: {8T}.reshape(T, 8)
T8: {T8} - {T8.1}.amax(0) + {T8.1}.amin(0)
T8: {T8}.flip(0).cumsum(0).flip(0) * 0.25
T8: {T8}.expand(3, -1, -1)[1] + {R8}.amax(0)
T: {TT}.amax(-1)
T: {TT}.diagonal()
T: {8T}[-1].flip(0)
T: {iT}.float() / T
T: {R}[{seg}]
T8: {T8} * {T}.softmax(0).ceil()[:, None]
iT: {seg} * 2
iT: {iT} % T
iT: {iT}.clamp(max=R - 1)
iT: {iT}.sort().values
iT: torch.searchsorted({iT}.sort().values, {ids})
iT: torch.bucketize({ids}, {iT}.sort().values)
seg: torch.searchsorted(query_start_loc, torch.arange(T, dtype=torch.int32), right=True) - 1
seg: torch.arange(R).repeat_interleave(query_start_loc[1:] - query_start_loc[:-1], output_size=T)
seg: torch.bucketize(torch.arange(T), query_start_loc.long(), right=True) - 1
seg: (query_start_loc[None, 1:] <= torch.arange(T)[:, None]).sum(1)
lens: query_start_loc[1:] - query_start_loc[:-1]
lens: query_start_loc.diff()
lens: torch.zeros(R, dtype=torch.int64).index_add_(0, {seg}, torch.ones(T, dtype=torch.int64))
lens: torch.bincount({seg}, minlength=R)[:R]
R8: {T8}[query_start_loc[1:].long() - 1]
R8: {T8}[(query_start_loc[1:] - 1).clamp(min=0)]
R8: {T8}[query_start_loc[:-1].clamp(max=T - 1)]
R8: {T8}.index_select(0, (query_start_loc[1:] - 1).clamp(min=0))
R8: torch.zeros(R, 8).index_add_(0, {seg}, {T8})
R8: torch.zeros(R, 8).index_add(0, {seg}, {T8}, alpha=0.5)
R8: torch.zeros(R, 8).scatter_add_(0, {seg}[:, None].expand(-1, 8), {T8})
R8: torch.zeros(R, 8).index_put_(({seg},), {T8}, accumulate=True)
R8: torch.full((R, 8), -4.0).scatter_reduce_(0, {seg}[:, None].expand(-1, 8), {T8}, 'amax')
R8: torch.zeros(R, 8).scatter_(0, {seg}[:, None].expand(-1, 8), 1.0)
R8: {R8} + {R8}
R8: torch.relu({R8})
R8: {R8} * {R}[:, None]
R8: {R8}.flip(0)
R8: {R8}.sort(0).values
R8: {R8} + {8}
R8: {R8}.cumsum(0) * 0.25
R8: {R8} * {lens}[:, None] * 0.125
R8: {R8}.roll(1, 0)
R8: torch.cat([{R8.1}[:1], {R8.1}])[:-1]
R8: {R8} + torch.arange(R)[:, None]
R8: self.table[{ids}[query_start_loc[:-1].clamp(max=T - 1)]]
R: {R8}.amax(-1)
R: {R} * {lens}
R: {R}.cumsum(0) * 0.25
0: {TT}.amax()
0: {TT}.amin() + {8T}.amax()
0: {=8T}.argmax().float() * 0.0625
0: {=T8}.argmax().float() * 0.0625
T8: torch.cat([{M2}, {H2}], 1).reshape(2, T, 8)[0]
T8: torch.stack([{M2}, {H2}], -1).reshape(T, 2, 8)[:, 1]
T8: $a = {M2}.clone(); $a.copy_({H2}); $a.view(T, 8)
T8: {H2}[3:].sum(0).repeat(2) + {T8}
T8: {H2}[0].repeat(2) + {T8}
T8: {H2}[1:2].sum(0).repeat(2) + {T8}
T8: {H2}.cumsum(0)[:T].repeat(1, 2) * 0.0625
T8: {T8}.clone().reshape(8, T).mul_(torch.arange(8)[:, None] * 0.25).reshape(T, 8)
T8: $a = {T8}.clone(); $a.view(8, T).mul_(torch.arange(8)[:, None] * 0.25); $a
T8: $a = {T8}.clone(); $a.view(8, T)[3].zero_(); $a
T8: $a = {T8}.clone(); $a.cumsum_(0); $a * 0.125
T8: $a = torch.empty_like({T8.1}); torch.cumsum({T8.1}, 0, out=$a); $a * 0.125
T8: {T8}.roll(T // 2, 1)
T8: {T8}.roll(T, 0)
T8: $a = self.buf[T]; $a + {T8}
T8: self.buf[64 - T :] + {T8}
T8: self.buf[R : R + T] + {T8}
T8: torch.cat([{R8}, {T8}])[R:]
T8: torch.cat([{R8}, {T8}])[:T]
T8: torch.cat([{T8}, {R8}]).amax(0) + {T8}
T8: {T8} * ({=T} > 0).sort().values[:, None]
T8: {T8}[({=T} > 0).long().argsort(stable=True)]
T8: torch.index_select({T8}, 1, {ids}[:1] % 8).expand(-1, 8) * 1
T8: $a = {T8}.clone(); $a.index_add_(1, torch.arange(4), {T4}); $a
T8: $a = {T8}.clone(); $a[:-1].index_fill_(1, torch.arange(2), 0.5); $a
T8: $a = {T8}.clone(); $a[:, torch.arange(4)] = {T4}; $a
T8: $a = {T8}.clone(); $a[1:, torch.arange(4)] = 0.25; $a
T8: $a = {T8}.clone(); $a[:-1, torch.arange(4)] = 0.25; $a
T8: $a = torch.zeros(T, 8); $a.scatter_(1, ({ids} % 8)[:, None], 1.0); $a
T8: $a = {T8}.clone(); $a[:-1].scatter_(1, ({ids} % 8)[1:, None], 1.0); $a
T8: $a = {T8}.clone(); $a[:-1].t()[2].zero_(); $a
T8: $a = {T8}.clone(); $a[:-1].masked_fill_(({=T8} > 0)[1:], 0.5); $a
T8: $a = {T8}.clone(); $b = $a[-1]; $a.mul_(0.5); $a + $b
T8: $a = {T8}.clone(); $b = $a[-1]; $b.add_(1); $a
T8: $a = torch.zeros(T + 2, 8); $a[1:-1] = {T8}; $a[2:] + $a[:-2]
T8: $a = F.pad({T8}, (0, 0, 2, 0)); $a[1:-1] = 0.5; $a[2:]
TT: {T}[:, None] + {T}[None, :]
TT: {T}[:, None] * {T}
TT: torch.where(torch.arange(T)[:, None] >= torch.arange(T), {TT}, 0)
TT: {TT}.tril()
TT: {TT}.triu(1)
TT: ({seg}[:, None] == {seg}[None]).float() + {TT}
TT: {TT}.t()
TT: {TT}.cumsum(1) * 0.125
TT: {TT}.masked_fill({bT}[None], 0)
"""

LOSSY_MIX = """
8: {T8}.sum(0)
8: {T8}.mean(0)
8: {R8}.sum(0)
8: {R8}.mean(0)
8: {T8}.var(0, correction=0)
8: {T8}.std(0, correction=0)
8: torch.logsumexp({T8}, 0)
8: {T8}.clamp(-1, 1).prod(0)
8: {T8}.norm(dim=0)
8: {T8}.norm(p=1, dim=0)
8: torch.linalg.vector_norm({T8}, ord=float('inf'), dim=0)
8: {T24}.sum((0, 1)).repeat(2)
8: {8T}.mean(1)
8: {T8}.t() @ {T}
8: torch.einsum('td,t->d', {T8}, {T})
8: torch.var_mean({T8}, 0, correction=0)[1]
0: {T8}.sum()
0: {T8}.mean()
0: {T8}.norm()
0: {T}.logsumexp(0)
0: {R}.mean()
0: {T} @ {T}
0: {T8}.std(correction=0)
0: F.mse_loss({T8}, {T8})
T8: {T8} @ {88}
T8: torch.softmax({T8}, 0)
T8: torch.log_softmax({T8}, 0)
T8: torch.softmax({TT}, -1) @ {T8}
T8: torch.softmax({TT}.masked_fill(torch.arange(T)[:, None] < torch.arange(T), float('-inf')), -1) @ {T8}
T8: $m = {seg}[:, None] == {seg}[None]; torch.softmax({TT}.masked_fill(~$m, float('-inf')), -1) @ {T8}
T8: torch.softmax({TT} + torch.full((T, T), float('-inf')).triu(1), -1) @ {T8}
T8: {TT}.tril() @ {T8}
T8: torch.einsum('ts,sd->td', {TT}, {T8})
T8: {TT}.t() @ {T8}
T8: F.scaled_dot_product_attention({T8}[None, None], {T8}[None, None], {T8}[None, None], is_causal=True)[0, 0]
T8: F.scaled_dot_product_attention({T8}[None, None], {T8}[None, None], {T8}[None, None])[0, 0]
T8: $m = {seg}[:, None] == {seg}; F.scaled_dot_product_attention({T8}[None], {T8}[None], {T8}[None], attn_mask=$m)[0]
T8: F.conv1d({8T}[None], self.taps, padding=1, groups=8)[0].t()
T8: F.conv1d(F.pad({8T}[None], (0, 2)), self.taps, groups=8)[0].t()
T8: {T8} - {T8}.mean(0, keepdim=True)
T8: F.layer_norm({8T}, (T,)).t()
T8: {T8} / ({T8}.norm() + 1)
T8: F.batch_norm(torch.cat([{T8}, {T8}]), None, None, training=True)[:T]
T8: F.softmax({T8} @ {R8}.t(), -1) @ {R8}
TT: {T8} @ {T8}.t() * 0.125
TT: torch.einsum('td,sd->ts', {T8}, {T8}) * 0.125
TT: torch.softmax({TT}, -1)
TT: torch.softmax({TT}, 0)
88: {8T} @ {T8} * 0.125
88: torch.einsum('td,te->de', {T8}, {T8}) * 0.125
88: torch.bmm({8T}[None], {T8}[None])[0] * 0.125
R8: torch.tanh({R8})
R8: F.linear({R8}, self.weight)
R8: torch.softmax({R8}, 0)
R8: torch.zeros(R, 8).index_add_(0, {seg}, {T8}) / {lens}[:, None].clamp(min=1)
R8: ({seg}[None] == torch.arange(R)[:, None]).float() @ {T8}
T: {TT}.sum(0)
T: {TT}.mean(1)
"""

STATE = """
!: self.state[slots] = {R8}
!: self.state[slots] += {R8}
!: self.state[slots] = self.state[slots] * 0.5 + {R8}
!: self.state.index_copy_(0, slots, {R8})
!: self.state.index_add_(0, slots, {R8})
!: self.state.index_put_((slots,), {R8}, accumulate=True)
!: self.state.index_fill_(0, slots, 0.25)
!: self.state[slots, :4] = {R8}[:, :4]
!: self.state[slots, 3] = {R}
!: self.state[:, :4][slots] = {R8}[:, 4:]
!: self.state.scatter_(0, slots[:, None].expand(-1, 8), {R8})
!: self.state[slots] = {8}
!: self.state[slots] = 0.0
!: self.buf[:T] = {T8}
!: self.buf[:T] += {T8}
!: self.buf[:T].mul_(0.5)
!: self.buf[:T].copy_({T8})
!: self.buf[:T, :4] = {T4}
!: self.buf[:T].add_({T8}, alpha=0.5)
!: self.buf[1 : T + 1] = {T8}
!: self.buf[:R] = {R8}
!: self.buf[torch.arange(T)] = {T8}
!: self.buf.index_copy_(0, torch.arange(T), {T8})
!: self.buf.index_add_(0, {ids}, {T8})
!: self.buf.index_put_(({ids},), {T8}, accumulate=True)
!: self.buf.scatter_add_(0, {ids}[:, None].expand(-1, 8), {T8})
!: self.buf.t()[:, :T] = {8T}
!: self.buf[:T].cumsum_(0)
!: torch.cumsum({T8}, 0, out=self.buf[:T])
!: torch.mm({T8}, self.weight, out=self.buf[:T])
!: self.buf[:T].index_fill_(1, torch.arange(3), 0.5)
!: self.buf[:T, torch.arange(4)] = {T4}
!: self.buf[:T].scatter_(1, ({ids} % 8)[:, None], 1.0)
!: self.buf[:T].index_add_(1, torch.arange(4), {T4})
!: self.buf[:T][:-1] = 0.5
!: self.buf[:T][1:] = 0.5
!: self.buf[:T].masked_fill_({bT}[:, None], 0)
!: self.buf[: 2 * T].view(T, 16)[:, :8] = {T8}
!: self.buf[: 2 * T][::2] = {T8}
!: self.buf[:T].clamp_(-R, T)
!: self.buf[torch.arange(T) + R] = {T8}
!: self.buf[64 - T :] = {T8}
!: self.buf.view(32, 2, 8)[:, 0][:T].add_(1)
!: self.buf.mul_(0.5)
!: self.buf[0] = {8}
!: self.buf[:T, 2].copy_({T})
!: torch.add({T8}, {T8}, out=self.buf[:T])
!: self.buf[:T] = self.buf[:T].flip(0)
!: self.buf[:T][0] = {8}
!: self.buf[:T][-1] = {8}
!: self.buf[T - 1] = {8}
!: self.buf[:, :4].copy_(self.buf[:, 4:])
!: self.total += {8}
!: self.total.copy_({8})
!: self.total.add_({0})
!: self.count += 1
!: self.count += T
!: self.count.copy_({lens}[0])
!: self.count.add_({lens}.max())
!: self.buf[self.count % 8] = {8}
R8: self.state[slots]
R8: self.state.index_select(0, slots)
R8: F.embedding(slots, self.state)
T8: self.state[slots[{seg}]]
T8: self.buf[:T]
T8: self.buf[:T] * 0.5
T8: self.buf[1 : T + 1] + {T8}
T8: self.buf[{ids}]
T8: self.buf[torch.arange(T) + 1]
8: self.buf[:T].amax(0)
8: self.total * 1
8: self.total
T8: {T8} + self.total
T8: {T8} + (self.count % 4)
"""

WHOLE_STATE = """
8: self.state.amax(0)
!: self.state.mul_(0.5)
!: self.state[0] = {8}
!: self.state.add_({8}, alpha=0.25)
R8: self.state[:R]
!: self.state[:R] = {R8}
"""

IN_PLACE = """
!: {~T8}.add_({T8})
!: {~T8}.mul_(0.5)
!: {~T8}[:, 2:4] = {T8}[:, 4:6]
!: {~T8}[:, 1].copy_({T})
!: {~T4}.add_({T4})
!: {~8T}.clamp_(-1, 1)
!: {~T24}[:, 0].zero_()
!: {~T8}[0].fill_(0.5)
!: {~T8}.clamp_(max=2)
!: {~T}.neg_()
"""

IN_PLACE_MIX = """
!: {~T8}[-1] = 0.5
!: {~T8}.mul_(T * 0.0625)
!: {~T8}.add_({8})
!: {~T8}.copy_({T8}.flip(0))
!: {~T8}.index_add_(0, {ids} % T, {T8})
!: {~T8}[1:].add_(0.5)
!: {~T8}[:-1] += {~T8.1}[1:].clone()
!: {~R8}.mul_(0.5)
!: {~8}.add_({8})
!: x.mul_(0.5)
!: y[:, :4] = {T4}
!: scale.add_(1)
!: torch.ops.random_programs.opaque_({~T8})
!: torch.ops.random_programs.opaque_({~8})
"""

OPAQUE = """
T8: torch.ops.random_programs.opaque({T8})
R8: torch.ops.random_programs.opaque({R8})
8: torch.ops.random_programs.opaque({8})
8T: torch.ops.random_programs.opaque({8T})
M2: torch.ops.random_programs.opaque({M2})
T: torch.ops.random_programs.opaque({T})
TT: torch.ops.random_programs.opaque({TT})
!: torch.ops.random_programs.opaque_(self.state)
!: torch.ops.random_programs.opaque_(self.buf[:T])
!: torch.ops.random_programs.opaque_(self.total)
8: torch.ops.random_programs.pair({T8})[1]
T8: torch.ops.random_programs.pair({T8})[0]
T8: $a = {T8}.clone(); torch.ops.random_programs.opaque_($a); $a
T8: $a = {T8}.clone(); torch.ops.random_programs.opaque_($a[:, :4]); $a
"""

SYNC = """
8: {T8}[{bT}].sum(0)
8: {T8}[{bT}.nonzero()[:, 0]].sum(0)
8: torch.masked_select({T8}, {bT}[:, None]).sum() + self.bias
T8: {T8} * {ids}.max().item() * 0.125
T8: {T8} + {lens}.max().item()
T8: $a = {T8}.clone(); $a[{bT}] = 0.5; $a
T8: $a = {T8}.clone(); $a[{bT}] *= 0.5; $a
0: {bT}.nonzero().shape[0] + {0}
0: torch.unique({ids}).sum().float() * 0.0625
T8: torch.cat([{T8.1}[{bT.2}], {T8.1}[~{bT.2}]])[:1] + {T8}
"""

INPUTS = {"x": "T8", "y": "T8", "ids": "ids", "slots": "slots", "scale": "R", "query_start_loc": "qsl"}
_OPERAND = re.compile(r"\{([=~]?)(\w+)(?:\.(\d))?\}")


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    kind: str
    text: str
    lossy: bool = False
    is_view: bool = False


def rows(table: str, lossy: bool = False, is_view: bool = False) -> list[Row]:
    pairs = [line.split(": ", 1) for line in table.strip().splitlines()]
    return [Row(kind, text, lossy, is_view) for kind, text in pairs]


LOCAL_ROWS = [*rows(LOCAL), *rows(LOSSY_LOCAL, True), *rows(VIEWS, is_view=True), *rows(IN_PLACE)]
PREFIX_ROWS = [*rows(PREFIX), *rows(LOSSY_PREFIX, True)]
MIX_ROWS = [*rows(MIX), *rows(LOSSY_MIX, True), *rows(IN_PLACE_MIX)]
STATE_ROWS, OPAQUE_ROWS, SYNC_ROWS = rows(STATE), rows(OPAQUE, True), rows(SYNC, True)
PLAIN_SLOT_ROWS = rows(WHOLE_STATE)


@torch.library.custom_op("random_programs::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    """Mixes all rows: nothing but running it at the live extents is right."""
    return x.flip(0) * 0.5 + x.sum() * 0.0625 + x.shape[0]


@opaque.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("random_programs::opaque_", mutates_args=("x",))
def opaque_(x: torch.Tensor) -> None:
    """Mixes all rows in place."""
    x.copy_(x.flip(0) * 0.5 + x.mean())


@torch.library.custom_op("random_programs::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x - x.mean(0), x.mean(0)


@pair.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[1:])


@dataclass(frozen=True)
class Value:
    """A named value. root: whose memory it is in; the program's own where `own`. exact: free of rounding."""

    name: str
    kind: str
    root: str
    own: bool
    exact: bool


@dataclass(frozen=True)
class Statement:
    """One row with its operands filled in. `out` is None for a row of kind `!`."""

    row: Row
    operands: tuple[Value, ...]
    out: Value | None
    number: int

    def lines(self) -> list[str]:
        names = iter(self.operands)
        text = _OPERAND.sub(lambda m: next(names).name, self.row.text).replace("$", f"v{self.number}_")
        *before, last = text.split("; ")
        return [*before, last if self.out is None else f"{self.out.name} = {last}"]


@dataclass(frozen=True)
class Program:
    """Statements, what is returned, whether slots have a null row, and the history as (T, R, seed) triples."""

    statements: tuple[Statement, ...]
    returned: tuple[str, ...]
    null: bool
    history: tuple[tuple[int, int, int], ...]
    is_local: bool

    def source(self) -> str:
        lines = [line for s in self.statements for line in s.lines()]
        body = ["T, R = x.shape[0], slots.shape[0]", *lines, f"return {', '.join(self.returned)}"]
        head = f"def forward(self, {', '.join(INPUTS)}):"
        return "\n".join([head, *[f"    {line}" for line in body]]) + "\n"

    def __str__(self) -> str:
        return f"{self.source()}# (T, R, seed): {list(self.history)}; null row: {self.null}"


# ---------------------------------------------------------------------------------------------------------- generator
class _Maker:
    def __init__(self, rng: random.Random, table: Sequence[Row]) -> None:
        self.rng, self.table = rng, table
        self.statements: list[Statement] = []
        self.values = [Value(name, kind, name, False, True) for name, kind in INPUTS.items()]

    def pool(self, mark: str, kind: str) -> list[Value]:
        found = [v for v in self.values if v.kind == kind]
        if mark == "=":
            found = [v for v in found if v.exact]
        return [v for v in found if v.own] if mark == "~" else found

    def value(self, mark: str, kind: str, depth: int) -> Value | None:
        """An operand: a value that there is, or one made for the purpose."""
        pool = self.pool(mark, kind)
        if pool and (depth > 2 or self.rng.random() < 0.85):
            at = len(pool) - 1 - min(int(self.rng.expovariate(0.5)), len(pool) - 1)
            return pool[at]
        if depth > 3 or mark == "~":
            return None
        makers = [r for r in self.table if r.kind == kind and not (mark == "=" and r.lossy)]
        for _ in range(4 if makers else 0):
            made = self.apply(self.rng.choice(makers), depth + 1)
            if made is not None and made.out is not None and (mark != "=" or made.out.exact):
                return made.out
        return pool[-1] if pool else None

    def apply(self, row: Row, depth: int = 0) -> Statement | None:
        operands: list[Value] = []
        labelled: dict[str, Value] = {}
        for mark, kind, label in _OPERAND.findall(row.text):
            value = labelled.get(label) if label else None
            value = value or self.value(mark, kind, depth)
            if value is None:
                return None
            operands.append(value)
            if label:
                labelled[label] = value
        return self.emit(row, operands)

    def emit(self, row: Row, operands: Sequence[Value]) -> Statement:
        number = len(self.statements)
        exact = not row.lossy and all(v.exact for v in operands)
        out = None
        if row.kind != "!":
            view = row.is_view and bool(operands)
            state = not view and row.text in ("self.buf[:T]", "self.total", "self.state[:R]")
            root = operands[0].root if view else f"v{number}"
            own = operands[0].own if view else not state
            reads = "self.state" in row.text or "self.buf" in row.text or "self.total" in row.text
            out = Value(f"v{number}", row.kind, root, own, exact and not reads)
            self.values.append(out)
        elif "{~" in row.text and not exact:
            self.forget(operands[0].root)
        elif row.text.startswith("y["):
            self.forget("y", exact)
        statement = Statement(row, tuple(operands), out, number)
        self.statements.append(statement)
        return statement

    def forget(self, root: str, exact: bool = False) -> None:
        """What was written with roundings is no longer free of them."""
        self.values = [replace(v, exact=v.exact and exact) if v.root == root else v for v in self.values]

    def returned(self) -> list[str]:
        used = {v.name for s in self.statements for v in s.operands}
        made = [s.out.name for s in self.statements if s.out is not None]
        free = [n for n in made if n not in used]
        return free[-4:] + self.rng.sample(made, min(1, len(made))) if made else ["x"]


def program(rng: random.Random, is_local: bool | None = None, size: int = 8) -> Program:
    """A random program.

    Args:
        rng: any source of choices, also one of hypothesis.
        is_local: only rows that stay in their row or look back; None for either.
        size: most statements asked for; operands that there are none of add to it.
    """
    is_local = rng.random() < 0.25 if is_local is None else is_local
    null = rng.random() < 0.3
    mixed = [MIX_ROWS, MIX_ROWS, MIX_ROWS, STATE_ROWS, [] if null else PLAIN_SLOT_ROWS, OPAQUE_ROWS, SYNC_ROWS]
    groups = [g for g in [LOCAL_ROWS, PREFIX_ROWS, *([] if is_local else mixed)] if g]
    weights = [len(g) for g in groups] if is_local else [4, 1, *[3 if g is not SYNC_ROWS else 1 for g in groups[2:]]]
    maker = _Maker(rng, [r for g in groups if g is not SYNC_ROWS for r in g])
    for _ in range(rng.randint(1, size)):
        maker.apply(rng.choice(rng.choices(groups, weights)[0]))
    returned = list(dict.fromkeys(maker.returned()))
    if rng.random() < 0.15:
        returned.append("x")
    return Program(tuple(maker.statements), tuple(returned), null, history(rng), is_local)


def history(rng: random.Random) -> tuple[tuple[int, int, int], ...]:
    """Extents of a few steps: a large one, then others, T == R, T == 1 and R == 1 among them."""
    special = [(1, 1), (4, 4), (5, 1), (8, 2), (1, 3), (3, 2), (9, 4), (7, 5), (2, 2), (30, 3)]
    steps = [(rng.randint(6, 20), rng.randint(2, 6))]
    steps += rng.sample(special, 2)
    steps += [(rng.randint(1, 12), rng.randint(1, 6))]
    if rng.random() < 0.4:
        rng.shuffle(steps)
    return tuple((t, r, rng.randrange(1000)) for t, r in steps)


def batch(t: int, r: int, seed: int) -> dict[str, torch.Tensor]:
    """Floats are multiples of 1/4, so that few sums round; requests may be empty; slots are distinct and not 0."""
    g = torch.Generator().manual_seed(seed)
    inner = torch.randint(0, t + 1, (r - 1,), generator=g).sort().values
    boundaries = torch.cat([torch.zeros(1), inner, torch.full((1,), t)]).to(torch.int32)
    return {
        "x": torch.randint(-8, 9, (t, 8), generator=g) / 4,
        "y": torch.randint(-8, 9, (t, 8), generator=g) / 4,
        "ids": torch.randint(0, 12, (t,), generator=g),
        "slots": torch.randperm(11, generator=g)[:r] + 1,
        "scale": torch.randint(-4, 5, (r,), generator=g) / 4,
        "query_start_loc": boundaries,
    }


# ---------------------------------------------------------------------------------------------------------- running
class Model(nn.Module):
    """What every program may use. `forward` is a program's own."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)

        def quarters(*shape: int) -> torch.Tensor:
            return torch.randint(-3, 4, shape, generator=g) / 4

        self.weight, self.bias = nn.Parameter(quarters(8, 8)), nn.Parameter(quarters(8))
        self.taps, self.table = nn.Parameter(quarters(8, 1, 3)), nn.Parameter(quarters(12, 8))
        self.register_buffer("ones", torch.ones(8))
        self.register_buffer("state", quarters(12, 8))
        self.register_buffer("buf", quarters(64, 8))
        self.register_buffer("total", quarters(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def model(source: str) -> nn.Module:
    name = f"<program {hash(source) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(source, name, "exec"), space)
    return type("RandomProgram", (Model,), {"forward": space["forward"]})()


def case(one: Program) -> capwise.Case:
    slots = capwise.Input("R", null=0) if one.null else ("R",)
    named = {"x": ("T", 8), "y": ("T", 8), "ids": ("T",), "slots": slots, "scale": ("R",), "query_start_loc": ("R+1",)}
    batches = [batch(*extents) for extents in one.history]
    sizes = {"capture_sizes": [1, 2, 4, 8, 16, 24]}
    return capwise.Case(model(one.source()), batches, inputs=named, capacity={"T": 32, "R": 8}, options=sizes, name="random")


def is_valid(one: Program) -> bool:
    """Whether eager itself runs it."""
    made = case(one)
    try:
        with torch.no_grad():
            for given in made.batches:
                made.model(**{k: v.clone() for k, v in given.items()})
    except (RuntimeError, IndexError, ValueError):
        return False
    return True


def failure(one: Program, modes: Sequence[str] = ("auto", "split")) -> str | None:
    """What is wrong with how a program is served; None where nothing is."""
    for mode in modes:
        torch._dynamo.reset()
        try:
            result = capwise.verify(case(one), repair=mode)
        except Exception as error:  # noqa: BLE001 - whatever the compiler dies of is the finding
            return f"{mode}: crash: {type(error).__name__}: {str(error)[:300]}"
        if not result.ok:
            return f"{mode}: {result}"
        codes = {d.code for d in result.report}
        if "CW901" in codes:
            notes = [f"{d.node}: {d.message}" for d in result.report if d.code == "CW901"]
            return f"{mode}: CW901 {notes}"
        if one.is_local and mode == "auto" and result.report.seams:
            return f"{mode}: a row-local program has seams: {result.report.seams}"
    return None


def smaller(one: Program) -> Iterator[Program]:
    """Programs with one step, output or statement less; a value that is gone is replaced by an earlier one."""
    for i in range(len(one.history)):
        if len(one.history) > 1:
            yield replace(one, history=one.history[:i] + one.history[i + 1 :])
    for name in one.returned:
        if len(one.returned) > 1:
            yield replace(one, returned=tuple(n for n in one.returned if n != name))
    for at in reversed(range(len(one.statements))):
        yield from _without(one, at)


def _without(one: Program, at: int) -> Iterator[Program]:
    gone = one.statements[at]
    rest = one.statements[:at] + one.statements[at + 1 :]
    if gone.out is None:
        yield replace(one, statements=rest)
        return
    known = [Value(n, k, n, False, True) for n, k in INPUTS.items()]
    known += [s.out for s in one.statements[:at] if s.out is not None]
    is_used = gone.out.name in one.returned or any(gone.out in s.operands for s in rest)
    for other in known if is_used else known[:1]:
        if is_used and other.kind != gone.out.kind and any(gone.out in s.operands for s in rest):
            continue
        swapped = tuple(
            replace(s, operands=tuple(other if v.name == gone.out.name else v for v in s.operands)) for s in rest
        )
        returned = tuple(dict.fromkeys(other.name if n == gone.out.name else n for n in one.returned))
        yield replace(one, statements=swapped, returned=returned)


def shrink(one: Program, fails: Callable[[Program], bool], most: int = 200) -> Program:
    """The same failure with less program: greedy, at most so many tries."""
    tries = 0
    progress = True
    while progress and tries < most:
        progress = False
        for candidate in smaller(one):
            tries += 1
            if tries >= most:
                break
            if is_valid(candidate) and fails(candidate):
                one, progress = candidate, True
                break
    return one
