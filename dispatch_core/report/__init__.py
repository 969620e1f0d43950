"""The report people look at: one dispatcher's result tables of one interval → one self-contained HTML file.

``flow`` and ``aggregate`` bring tables of any size down to what a picture can show, ``pictures`` draws it with plotly,
``page`` makes the file. Pure: tables in, text out; the command line and the pipeline write it.
"""
