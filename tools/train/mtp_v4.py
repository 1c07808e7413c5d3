"""The multi-token-prediction layer of DeepSeek V4 behind a frozen trunk, in plain PyTorch.

Row i of use 1 takes token i+1 and the trunk's four residual streams of token i (before their collapse), and predicts
token i+2; use s takes token i+s and the streams of use s-1 for row i, is at position i+s-1, and predicts
token i+s+1. Uses after the first read the keys of use 1 up to row i and those of their own row. The layer reads a window
of tokens and has no entries. Names follow the published checkpoints; embedding and head are the trunk's.
"""

import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from attention_v4 import WINDOW, Rows, padded_length, sink_columns, window_scores, with_previous
from data import PAD
from export import decoded_v4_weights, module_v4_state, published_v4_weights, stored_v4_weights
from model import Linear, RMSNorm
from model_v4 import Block, Head, ModelV4, adam_only, set_weight_rounding

PREFIX = "mtp.0."


class MtpLayer(Block, Head):
    def __init__(self, c: dict):
        super().__init__(c, 0, False)
        hidden = c["hidden_size"]
        self.config = c
        self.enorm, self.hnorm = RMSNorm(hidden), RMSNorm(hidden)
        self.e_proj, self.h_proj = Linear(hidden, hidden), Linear(hidden, hidden)
        self.init_head(c)

    def start_from(self, trunk: ModelV4) -> None:
        """Starts from the trunk's first layer, which is alike except for its router, and its head; streams pass through."""
        state = {n: v for n, v in trunk.layers[0].state_dict().items() if "gate." not in n}
        state |= {n: v for n, v in trunk.state_dict().items() if n.startswith("hc_head_") or n == "norm.weight"}
        self.load_state_dict(state, strict=False)
        eye = torch.eye(len(self.e_proj.weight), device=self.e_proj.weight.device)
        self.e_proj.weight.data.copy_(0.5 * eye)
        self.h_proj.weight.data.copy_(eye)

    def adam_parameters(self):
        return [p for n, p in self.named_parameters() if adam_only(n, p)]

    def set_rounding(self, on: bool) -> None:
        set_weight_rounding(self, on)

    def combine(self, embedded: torch.Tensor, streams: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        token = self.e_proj(self.enorm(embedded).to(dtype)).float()
        return token[:, None] + self.h_proj(self.hnorm(streams).to(dtype)).float()


def sequence_ends(rows: Rows) -> torch.Tensor:
    return rows.ends


def trunk_states(trunk: ModelV4, tokens: torch.Tensor, rows: Rows):
    """What the layer reads, streams [T, 4, H], and the hidden states [T, H] whose logits are the trunk's."""
    streams = trunk.streams(tokens, rows)
    return streams, trunk.head(streams).to(trunk.dtype)


def load_trunk(folder: pathlib.Path, architecture: dict, device) -> ModelV4:
    """The shipped checkpoint, decoded: what runs there, to the bit, in float32."""
    model = ModelV4(architecture)
    model.load_state_dict(module_v4_state(decoded_v4_weights(load_file(folder / "model.safetensors"))))
    model.sparse = True
    model.set_index_quantise(True)
    return model.to(device).requires_grad_(False)


def load_mtp(folder: pathlib.Path, architecture: dict, device) -> MtpLayer:
    """The layer of folder/mtp.safetensors, decoded."""
    state = module_v4_state(decoded_v4_weights(load_file(folder / "mtp.safetensors")))
    mtp = MtpLayer(architecture)
    mtp.load_state_dict({n.removeprefix(PREFIX): v for n, v in state.items()})
    return mtp.to(device).requires_grad_(False)


def published(mtp: MtpLayer) -> dict[str, torch.Tensor]:
    """The tensors as published checkpoints name and store them."""
    return stored_v4_weights(published_v4_weights(mtp.state_dict(), PREFIX))


def run_uses(trunk, mtp: MtpLayer, tokens, rows: Rows, streams, uses: int, sparse=None, index_rows=0, stats=None):
    """Per use the normed hidden states [T, hidden] whose head logits predict token i+s+1 in row i.

    Rows whose tokens are past their sequence's end are meaningless. `sparse` and `index_rows` are for layers with an
    indexer.
    """
    embedded = F.embedding(tokens, trunk.embed)
    attn, outs, held = mtp.attn, [], []
    keys = torch.arange(2 * WINDOW, device=tokens.device)
    at = torch.arange(WINDOW, device=tokens.device)[:, None]

    def read_use(s: int):
        def read(q, kv):
            held.append(kv)
            blocks = with_previous(held[0])
            scores = [window_scores(q, blocks, attn.scale, rows.window & (keys > at + (s - 1)))]
            for own in held[1:]:
                dots = (q * own[:, None]).sum(-1) * attn.scale
                scores.append(dots.reshape(-1, WINDOW * attn.heads, 1))
            columns = sink_columns(attn.attn_sink, q, len(blocks), WINDOW, len(held) - 1)
            weights = torch.cat((*scores, columns), -1).softmax(-1)
            out = (weights[..., : 2 * WINDOW] @ blocks).reshape(q.shape)
            for i, own in enumerate(held[1:]):
                out = out + weights[..., 2 * WINDOW + i].reshape(q.shape[:2])[..., None] * own[:, None]
            return out

        return read

    for s in range(1, uses + 1):
        positions = (rows.positions + (s - 1)).clamp_max(len(trunk.main_cos) - 1)
        cos, sin = trunk.tables(False, positions)
        streams = mtp.combine(embedded.roll(-s, 0), streams, trunk.dtype)
        streams = mtp(trunk, streams, tokens, rows, cos, sin, stats, read_use(s))
        outs.append(mtp.head(streams).to(trunk.dtype))
    return outs


@torch.no_grad()
def draft(trunk, mtp: MtpLayer, ids: list[int], uses: int) -> tuple[list[int], torch.Tensor]:
    """Drafts as an engine does after a prompt: the trunk's token, then `uses` drafts by argmax.

    Returns [the trunk's token, drafts...] and the drafts' logits [uses, vocabulary] float32.
    """
    row = len(ids) - 1
    rows = Rows([padded_length(len(ids) + uses)], trunk.embed.device)

    def padded(given: list[int]) -> torch.Tensor:
        known = ids + given
        return torch.tensor(known + [PAD] * (len(rows.positions) - len(known)), device=rows.device)

    streams, hidden = trunk_states(trunk, padded([]), rows)
    given = [int(trunk.logits(hidden[row]).argmax())]
    logits = []
    for s in range(1, uses + 1):
        logits.append(trunk.logits(run_uses(trunk, mtp, padded(given), rows, streams, s)[-1][row]).float())
        given.append(int(logits[-1].argmax()))
    return given, torch.stack(logits)
