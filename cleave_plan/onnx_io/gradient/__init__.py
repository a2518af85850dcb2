"""Reverse-mode differentiation of ONNX graphs: a forward graph becomes one that also gives a loss and its gradients.

``build`` is the entrance, ``rules`` holds one rule per operator. What is written uses standard operators only.
"""

from cleave_plan.onnx_io.gradient import rules

__all__ = ["rules"]
