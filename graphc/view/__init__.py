"""Views of memory plans: an HTML page, pictures, traces and explanations in sentences.

`page_model.py` computes the contents of a page, and `page.py` writes it. `trace.py` and
`snapshot.py` write files for other viewers. Only `picture.py` uses matplotlib. `difference.py` and
`explain.py` describe plans in sentences.
"""
