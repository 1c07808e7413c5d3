"""DeepSeek V4's attention over packed rows: a window of tokens, and in most layers compressed entries beside it.

Sequences begin at multiples of 128 tokens and are padded at their end to one of WIDTHS, so that window blocks and
groups of pooled tokens are plain views of the row. Causality hides padding from real tokens.
"""

import torch
import torch.nn.functional as F

WINDOW = 128
SCORES_AT_ONCE = 1 << 29  # index scores of single heads that are held at a time
WIDTHS = (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 7168, 8192)


def padded_length(tokens: int) -> int:
    return next(w for w in WIDTHS if w >= tokens)


class Rows:
    """The positions of sequences in a packed row: lengths are multiples of 128, and equal ones are grouped."""

    def __init__(self, lengths: list[int], device, weights: torch.Tensor | None = None):
        self.lengths = lengths
        self.device = device
        self.weights = weights  # float32 [T], loss weights: the indexer's loss prefers rows that predict answers
        self.groups: list[tuple[int, int, int]] = []  # first token, sequences, width
        at = 0
        for length in lengths:
            if length % WINDOW:
                raise ValueError(f"lengths: wanted multiples of {WINDOW}, offered {length}")
            if self.groups and self.groups[-1][2] == length:
                first, count, width = self.groups[-1]
                self.groups[-1] = (first, count + 1, width)
            else:
                self.groups.append((at, 1, length))
            at += length
        self.positions = torch.cat(  # int64 [T]
            [torch.arange(w, device=device).repeat(count) for _, count, w in self.groups]
        )
        keys = torch.arange(2 * WINDOW, device=device)
        rows = torch.arange(WINDOW, device=device)[:, None]
        near = (keys > rows) & (keys <= rows + WINDOW)
        begins = (self.positions[::WINDOW] == 0)[:, None, None]
        self.window = near & ~(begins & (keys < WINDOW))  # bool [T / 128, 128, 256]

    def starts(self, ratio: int) -> torch.Tensor:
        """bool [T / ratio]: whether an entry is its sequence's first."""
        return self.positions[::ratio] == 0

    @property
    def ends(self) -> torch.Tensor:
        """int64 [T]: the padded length of the sequence that a token belongs to."""
        return torch.cat([torch.full((count * w,), w, device=self.device) for _, count, w in self.groups])


def with_previous(x: torch.Tensor) -> torch.Tensor:
    """Blocks [T, D] -> [T / 128, 256, D]: each block of 128 rows behind the one before it (for the first, zeros)."""
    blocks = x.unflatten(0, (-1, WINDOW))
    before = torch.cat((torch.zeros_like(blocks[:1]), blocks[:-1]))
    return torch.cat((before, blocks), 1)


def _bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def window_scores(q, blocks, scale: float, mask) -> torch.Tensor:
    """q [T, H, D] against blocks [T / 128, 256, D], mask [T / 128, 128, 256], to [T / 128, 128 H, 256]."""
    heads = q.shape[1]
    bias = _bias(mask, q.dtype).repeat_interleave(heads, 1)
    return torch.baddbmm(bias, q.reshape(-1, WINDOW * heads, q.shape[2]), blocks.mT, alpha=scale)


def sink_columns(sink, q, count: int, width: int, others: int) -> torch.Tensor:
    """[count, width H, 1 to 8]: the sinks, and columns of -inf that make rows of `others` more whole 16-byte units."""
    column = sink.to(q.dtype).repeat(width)[None, :, None].expand(count, -1, -1)
    return F.pad(column, (0, -(others + 1) % 8), value=float("-inf"))


def visible(rows: int, ratio: int, device) -> torch.Tensor:
    """bool [rows, rows / ratio]: the entries that are complete at a row's position."""
    at = torch.arange(rows, device=device)[:, None]
    return torch.arange(rows // ratio, device=device) < (at + 1) // ratio


def attend(q, kv, entries, ratio: int, sink, scale: float, rows: Rows, chosen=None, wanted=None):
    """q [T, H, D], kv [T, D], entries [T / ratio, D] or None, sink [H], to [T, H, D].

    `chosen` holds per group bool [count, width, width / ratio] or None for all. `wanted`, per group int64 [count, R] or
    None, asks for the attention's mass on entries in those rows, summed over heads: float32 [count, R, width / ratio].
    """
    heads, dim = q.shape[1:]
    blocks = with_previous(kv)
    near = window_scores(q, blocks, scale, rows.window)
    outs, masses = [], []
    for i, (first, count, width) in enumerate(rows.groups):
        part = slice(first // WINDOW, (first + count * width) // WINDOW)
        scores = [near[part].reshape(count, width * heads, -1)]
        far = None
        if ratio and width >= ratio:
            far = entries[first // ratio : (first + count * width) // ratio].unflatten(0, (count, -1))
            mask = chosen[i] if chosen and chosen[i] is not None else visible(width, ratio, q.device)[None]
            bias = _bias(mask, q.dtype).repeat_interleave(heads, 1).expand(count, -1, -1)
            rows_q = q[first : first + count * width].reshape(count, width * heads, dim)
            scores.append(torch.baddbmm(bias, rows_q, far.mT, alpha=scale))
        weights = torch.cat((*scores, sink_columns(sink, q, count, width, scores[-1].shape[-1])), -1).softmax(-1)
        of_window = weights[..., : 2 * WINDOW].reshape(-1, WINDOW * heads, 2 * WINDOW)
        out = (of_window @ blocks[part]).reshape(-1, heads, dim)
        if far is not None:
            held = weights[..., 2 * WINDOW : 2 * WINDOW + far.shape[1]]
            out = out + (held @ far).reshape(-1, heads, dim)
            if wanted and wanted[i] is not None:
                with torch.no_grad():
                    batch = torch.arange(count, device=q.device)[:, None]
                    masses.append(held.unflatten(1, (width, heads))[batch, wanted[i]].float().sum(2))
        outs.append(out)
    return torch.cat(outs), masses


def _index_scores(q, k, weights) -> torch.Tensor:
    """q [B, R, H, D], k [B, S, D], weights [B, R, H] to scores [B, R, S] float32."""
    dots = (q.flatten(1, 2) @ k.mT).relu().unflatten(1, q.shape[1:3])
    return (weights.to(dots.dtype)[:, :, None] @ dots)[:, :, 0].float()


@torch.no_grad()
def select(index, topk: int, ratio: int, rows: Rows) -> list[torch.Tensor | None]:
    """Per group the entries that each row reads, bool [count, width, width / ratio]; None where all fit in top-k."""
    masks: list[torch.Tensor | None] = []
    for first, count, width in rows.groups:
        entries = width // ratio
        if entries <= topk:
            masks.append(None)
            continue
        part, of_entries = slice(first, first + count * width), slice(first // ratio, first // ratio + count * entries)
        q, weights = (t[part].unflatten(0, (count, width)) for t in (index[0], index[2]))
        k = index[1][of_entries].unflatten(0, (count, entries))
        seen = visible(width, ratio, q.device)
        mask = torch.zeros(count, width, entries, dtype=torch.bool, device=q.device)
        step = max(64, SCORES_AT_ONCE // (count * entries * q.shape[2]))
        for at in range(0, width, step):
            span = slice(at, min(at + step, width))
            scores = _index_scores(q[:, span], k, weights[:, span]).masked_fill(~seen[span], float("-inf"))
            mask[:, span].scatter_(-1, scores.topk(topk, -1).indices, True)
        masks.append(mask & seen)
    return masks


def draw_rows(count: int, topk: int, ratio: int, rows: Rows) -> list[torch.Tensor | None]:
    """Per group int64 [sequences, count] rows for the indexer's loss; half of them predict answers. None: too short."""
    predicts = F.pad(rows.weights[1:], (0, 1)) if rows.weights is not None else None
    drawn: list[torch.Tensor | None] = []
    for first, sequences, width in rows.groups:
        if width // ratio <= topk:
            drawn.append(None)
            continue
        even = torch.ones(sequences, width, device=rows.device)
        even[:, : topk * ratio] = 0  # rows whose entries are all taken
        some = torch.multinomial(even, count // 2, replacement=True)
        if predicts is not None:
            answers = predicts[first : first + sequences * width].unflatten(0, (sequences, width)) * even
            more = torch.multinomial(answers + 1e-9 * even, count // 2, replacement=True)
            some = torch.cat((some, more), 1)
        drawn.append(some)
    return drawn


def index_loss(index, masses, wanted, topk: int, ratio: int, rows: Rows):
    """KL from the attention's mass on entries to softmax(index scores), weighted by it; and the top-k's share of it."""
    zero = index[0].new_zeros((), dtype=torch.float32)
    total, drawn, covered, whole = zero, 0, zero, zero
    masses = iter(masses)
    for (first, count, width), at in zip(rows.groups, wanted, strict=True):
        if at is None:
            continue
        mass = next(masses)
        entries = width // ratio
        flat = (first + torch.arange(count, device=at.device)[:, None] * width + at).flatten()
        q, weights = (t.index_select(0, flat).unflatten(0, at.shape) for t in (index[0], index[2]))
        k = index[1][first // ratio : first // ratio + count * entries].unflatten(0, (count, entries))
        seen = torch.arange(entries, device=at.device) < ((at + 1) // ratio)[..., None]
        scores = _index_scores(q, k, weights).masked_fill(~seen, float("-inf"))
        guess = scores.log_softmax(-1).masked_fill(~seen, 0.0)
        share = mass.sum(-1, keepdim=True).clamp_min(1e-6)
        target = mass / share
        kl = (target * (target.clamp_min(1e-10).log() - guess)).sum(-1) * share[..., 0].clamp_max(1.0)
        total, drawn = total + kl.sum(), drawn + kl.numel()
        with torch.no_grad():
            covered = covered + mass.gather(-1, scores.topk(topk, -1).indices).sum()
            whole = whole + mass.sum()
    if drawn == 0:  # no document is longer than top-k: no gradient, but a graph
        total = 0.0 * sum(part.float().sum() for part in index)
    return total / max(drawn, 1), covered / whole.clamp_min(1e-6)
