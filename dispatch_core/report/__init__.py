"""Make the report of one dispatcher and interval: result tables in, one self-contained HTML file out.

``flow``, ``ring`` and ``aggregate`` reduce tables of any size to the data of the pictures, ``pictures`` draws them with
plotly, ``page`` makes the HTML text. The command line and the pipeline write the file.
"""
