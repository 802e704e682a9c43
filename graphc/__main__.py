"""Entry point of ``python -m graphc``."""

import sys

from graphc.cli import main

sys.exit(main())
