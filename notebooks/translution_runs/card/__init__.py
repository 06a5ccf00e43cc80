"""Half an hour on a graphics card: what is measured and run there, in which order, and how it comes home.

The command `translution card` writes what it finds into one folder, as it is found; `translution card --import FOLDER`
checks that folder and puts it into the records. Chapter "From laptop to cluster".
"""
