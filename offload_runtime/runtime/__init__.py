"""The runtime: host memory, transfer engines, the operators that drive them, and the compiler back end."""
