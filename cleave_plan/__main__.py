"""``python -m cleave_plan`` is the command ``cleave-plan``."""

from cleave_plan.cli.main import main

if __name__ == "__main__":
    main()
