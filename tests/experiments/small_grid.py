"""A grid of four runs of seconds."""

GRID = """
name: quick
title: Quick
paper: translution
table: 2
experiment: image-classification
common: {train_samples: 32, test_samples: 16, batch_size: 16, threads: 1, canvas: 16, patch_size: 8, depth: 1, dim: 8,
         ff: 16, epochs: 1, train_placement: static}
seeds: [0, 1]
rows:
  plain: {mixer: absolute, printed: {architecture: ViT-A/12, method: self-attention}}
  turned: {mixer: rotary}
columns:
  static → static: {evaluation: static, metric: top1 static->static}
profiles:
  smoke: {differs: Small.}
  cpu: {differs: On MNIST., common: {data: mnist, canvas: 28, patch_size: 14}}
  paper: {differs: On a GPU., common: {device: cuda}}
"""
