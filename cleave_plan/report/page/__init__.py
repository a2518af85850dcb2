"""One HTML file that shows a plan, a run, a simulation or a comparison, and needs nothing else to be looked at.

``document`` lays a page out, ``charts`` writes the charts' specifications, and one file for each kind of page says what is
shown.
"""
