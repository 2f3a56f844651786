"""Rules files: writing them from intervals, checking and explaining them. The grammar is
accl_py.rules' alone.
"""
