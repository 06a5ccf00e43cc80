"""Where a digit of Moving MNIST is (Srivastava, Mansimov and Salakhutdinov, 2015): it flies straight and bounces.

A flight starts anywhere, in any direction, and covers a tenth of the room in each of 20 frames. A step that would
cross a wall ends at the wall, and the digit turns back: a digit touches each of the four walls in 3 % of the frames,
a little more often than the uniform law of "dynamic" puts it there. One frame of each flight is drawn.
"""

import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

FRAMES = 20
STEP = 0.1  # of the room, along the direction of the flight


def flights(count: int, room: tuple[int, int], generator: torch.Generator | None = None) -> Int64[Tensor, "b 2"]:
    """Top-left corners (row, column) of `count` images, each in a random frame of a flight of its own.

    Args:
        count: number of images.
        room: size of the canvas minus size of the image, in pixels.
        generator: where starts, directions and frames come from; torch's global generator when None.
    """
    device = generator.device if generator is not None else None
    start = torch.rand(count, 2, generator=generator, dtype=torch.float64, device=device)
    angle = torch.rand(count, generator=generator, dtype=torch.float64, device=device) * (2 * math.pi)
    frame = torch.randint(1, FRAMES + 1, (count,), generator=generator, device=device)
    path = fly(start, STEP * torch.stack([angle.sin(), angle.cos()], dim=1), FRAMES)
    position = path[frame, torch.arange(count, device=path.device)]
    return (position * torch.tensor(room, device=path.device)).long()


def fly(start: Float64[Tensor, "b 2"], step: Float64[Tensor, "b 2"], frames: int) -> Float64[Tensor, "t b 2"]:
    """Positions in a box of side 1, at the start and after each of `frames` steps."""
    path = [start]
    for _ in range(frames):
        position = (path[-1] + step).clamp(0, 1)
        step = torch.where((position == 0) | (position == 1), -step, step)
        path.append(position)
    return torch.stack(path)
