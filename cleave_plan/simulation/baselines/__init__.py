"""Other systems' strategies on the same fleet, links and cost model: one file each, every degree searched.

Each rival is taken at its best: its own choice of devices and degrees, activations recomputed at no cost, operators between
GEMMs at no cost, transfers beside arithmetic where its authors overlap them. ``setting`` says what they all plan for.
"""
