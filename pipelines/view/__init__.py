"""Visual review of results: the images of each study, their slices, marks, and a local server.

May import the readers of scans, reports and the pairing of files. Must not depend on models or
devices, and opens no connection to another host.
"""
