# We start the package's binary ourselves (see session_custody.devstack): only its place is asked for.
__version__: str
