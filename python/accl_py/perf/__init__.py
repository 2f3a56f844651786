"""accl-perf: bandwidth checks in the form of nccl-tests."""
