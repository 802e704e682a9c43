"""A memory plan to look at: a page, a picture, traces, and sentences that explain it.

`page_model.py` says what a page shows, `page.py` makes the page; `trace.py` and `snapshot.py` write
files for other viewers; `picture.py`, alone, draws with matplotlib; `difference.py` and
`explain.py` put plans into words.
"""
