"""Virtual time: what a plan takes when its transfers share links, devices vary, fail and come back.

``work`` lays a plan's levels out as columns of phases, ``sharing`` divides links, ``fluid`` and ``paced`` let time pass,
``run`` puts levels, operators and batches in a row.
"""
