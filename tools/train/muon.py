"""Muon: momentum SGD that replaces each matrix update by the nearest semi-orthogonal matrix.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with the step's size of Liu et al.,
"Muon is scalable for LLM training" (2025), section 2.2: scaled to AdamW's usual root mean square, so that both share
one learning rate and one weight decay.
"""

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the odd polynomial that drives singular values towards one
_STEPS = 5
_MOMENTUM = 0.95
_ADAM_RMS = 0.2


def orthogonalise(x: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz steps on a batch of matrices [N, R, C], in bf16; on a CPU, whose bf16 products are slow, in f32."""
    x = x.bfloat16() if x.is_cuda else x.float()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Takes matrices [R, C] and stacks of them [E, R, C]; those of one shape are worked on together."""

    def __init__(self, groups: list[dict], lr: float):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                alike.setdefault(tuple(parameter.shape[-2:]), []).append(parameter)
            for (rows, columns), parameters in alike.items():
                grads = [p.grad for p in parameters]
                momenta = [self.state[p]["momentum"] for p in parameters]
                torch._foreach_lerp_(momenta, grads, 1 - _MOMENTUM)
                ahead = torch._foreach_lerp(grads, momenta, _MOMENTUM)  # Nesterov's look ahead
                update = orthogonalise(torch.cat([u.reshape(-1, rows, columns) for u in ahead])).float()
                size = group["lr"] * _ADAM_RMS * max(rows, columns) ** 0.5
                counts = [p.numel() // (rows * columns) for p in parameters]
                updates = [u.reshape(p.shape) for u, p in zip(update.split(counts), parameters)]
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, updates, alpha=-size)
