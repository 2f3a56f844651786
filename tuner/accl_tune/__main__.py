"""python -m accl_tune: the same as accl-tune."""

from accl_tune.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
