"""Predicted against measured over real links: hosts in network namespaces of their own, links shaped by the kernel.

See :mod:`benchmarks.shaped.__main__` for the command. None of this is part of the product: tiles travel over TLS sockets in a
form that only the two ends of this benchmark know.
"""
