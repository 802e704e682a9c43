"""Entry point of ``python -m graphc``."""

import sys

from graphc_command import main

sys.exit(main())
