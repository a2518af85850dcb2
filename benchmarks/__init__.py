"""Benchmarks: a table of model x size x phase, one driver per phase. Never run by the default tests.

Everything here is measured on one thread: the numeric libraries read these variables when they load, so they are set
before any benchmark imports one.
"""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
