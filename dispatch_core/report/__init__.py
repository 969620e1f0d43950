"""Make the report of one dispatcher and interval: result tables in, one HTML file out.

``flow``, ``ring`` and ``aggregate`` reduce tables of any size to the data of the pictures, ``pictures`` draws them with
plotly, ``page`` makes the HTML text, ``index`` that of the list of several pages. The command line and the pipeline write
the files.
"""
