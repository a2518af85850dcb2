"""Builders of the ONNX files that tests, README and benchmarks use."""
