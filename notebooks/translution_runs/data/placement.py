"""Placing small images on a larger, black canvas: static (centred), dynamic (anywhere), and laws between the two.

Static and dynamic MNIST of Fan et al. (2025, section 4.1.1): a 28 by 28 digit on an 84 by 84 canvas, either always at
pixels 28 to 55 or at a position drawn uniformly from the 57 by 57 that keep the whole digit on the canvas. "aligned"
and "near" are two parts of dynamic: whole patches away from the centre, and less than a patch away from it. "moving" is
one frame of a digit's flight (Moving MNIST, section 5.2 of the preprint by the same authors).
"""

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from translution_runs.data.flights import flights

PLACEMENTS = ("static", "dynamic", "aligned", "near", "moving")


def place(
    images: Shaped[Tensor, "b ch h w"],
    canvas: int | tuple[int, int],
    mode: str,
    generator: torch.Generator | None = None,
    patch: int | None = None,
) -> Shaped[Tensor, "b ch H W"]:
    """Each image on a canvas of zeros.

    Args:
        images: any dtype and device; the result has the same.
        canvas: height and width of the canvas in pixels; one number for a square.
        mode: "static" puts every image at the centre (towards the top left where the margins cannot be equal);
            "dynamic" draws a corner for each image, uniform over all that keep the image on the canvas; "aligned"
            over those whole patches away from the centre; "near" over those at most half a patch away along each axis;
            "moving" takes the corner from a frame of a flight (`flights`).
        generator: where dynamic positions come from; torch's global generator when None. With a generator on the CPU
            the positions are the same for images on any device.
        patch: side of a patch in pixels, for "aligned" and "near".

    Raises:
        ValueError: an unknown mode, a canvas smaller than the images, or no patch where the mode needs one.
    """
    height, width = (canvas, canvas) if isinstance(canvas, int) else canvas
    room = (height - images.shape[-2], width - images.shape[-1])
    if min(room) < 0:
        size = f"{images.shape[-2]} by {images.shape[-1]}, the size of the images"
        raise ValueError(f"canvas: got {height} by {width}, expected at least {size}")
    return paste(images, (height, width), corners(len(images), room, mode, generator, patch))


def corners(
    count: int, room: tuple[int, int], mode: str, generator: torch.Generator | None = None, patch: int | None = None
) -> Int64[Tensor, "b 2"]:
    """Top-left corners (row, column) for `count` images; `room` is canvas size minus image size; the rest as `place`.

    Each axis by itself: static is half the room, aligned, near and dynamic draw uniformly from `places(room, mode,
    patch)`. Moving draws a flight, which ties the axes together.
    """
    if mode == "moving":
        return flights(count, room, generator)
    choices = [places(r, mode, patch) for r in room]
    if mode == "static":
        return torch.cat(choices).expand(count, 2)
    device = generator.device if generator is not None else None
    drawn = [torch.randint(len(axis), (count,), generator=generator, device=device) for axis in choices]
    return torch.stack([axis.to(index.device)[index] for axis, index in zip(choices, drawn, strict=True)], dim=1)


def places(room: int, mode: str, patch: int | None = None) -> Int64[Tensor, " k"]:
    """The corners that a mode allows along one axis with so much room, in ascending order.

    Raises:
        ValueError: an unknown mode, or no patch where the mode needs one.

    Label: eq-equivariance-phase.
    """
    if mode not in PLACEMENTS:
        raise ValueError(f"mode: got {mode!r}, expected one of {PLACEMENTS}")
    if mode in ("aligned", "near") and (patch is None or patch < 1):
        raise ValueError(f"patch: got {patch!r}, expected the side of a patch for {mode!r}")
    everywhere, away = torch.arange(room + 1), torch.arange(room + 1) - room // 2
    if mode in ("dynamic", "moving"):
        return everywhere
    step = patch or 1
    kept = {"static": away == 0, "aligned": away % step == 0, "near": away.abs() <= step // 2}[mode]
    return everywhere[kept]


def paste(
    images: Shaped[Tensor, "b ch h w"], canvas: tuple[int, int], corner: Int64[Tensor, "b 2"]
) -> Shaped[Tensor, "b ch H W"]:
    """Image b on a canvas of zeros with its top-left pixel at `corner[b]`."""
    batch, channels, height, width = images.shape
    corner = corner.to(images.device)
    rows = corner[:, 0, None, None] + torch.arange(height, device=images.device)[:, None]  # b h 1
    columns = corner[:, 1, None, None] + torch.arange(width, device=images.device)  # b 1 w
    out = images.new_zeros(batch, channels, *canvas)
    which = torch.arange(batch, device=images.device)[:, None, None]
    out[which, :, rows, columns] = images.permute(0, 2, 3, 1)  # the indexed axes come first: b h w ch
    return out
