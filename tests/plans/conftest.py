"""A plan with all that a file holds, and its file's text."""

import pytest
from plans.changed_files import Text, planned


@pytest.fixture(scope="session")
def plan():
    return planned()


@pytest.fixture(scope="session")
def text(plan):
    return Text(plan.to_json())
