"""Lightning Fabric, from whichever package brings it: `lightning-fabric` by itself, or the whole of `lightning`."""

try:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy
except ModuleNotFoundError:
    from lightning.fabric import Fabric  # type: ignore[no-redef]
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy  # type: ignore[no-redef]

__all__ = ["DDPStrategy", "Fabric", "ModelParallelStrategy", "Strategy"]
