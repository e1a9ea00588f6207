"""OSU-style micro-benchmarks: one harness for `accdp bench OP` and the files bench/osu_*.py.

Nothing here imports the native core or torch before a backend needs it: with ``--backend mpi`` the harness runs on
mpi4py and NumPy alone, so that an MPI which accdp was not built with can be measured by the same code.
"""
