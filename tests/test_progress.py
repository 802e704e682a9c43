from graphc.progress import heard_by, report


def test_only_reports_made_within_are_heard():
    heard: list[str] = []
    report("before")
    with heard_by(heard.append):
        report("within")
    report("after")
    assert heard == ["within"]
