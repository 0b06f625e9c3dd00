"""Maps: volumes about a result that are stored beside it, each made when an option asks for it.

May import study.voxels, engine and io. Must not know how a study travels, or where maps are stored.
"""
