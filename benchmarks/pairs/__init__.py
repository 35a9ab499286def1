"""Two versions of the library side by side: the same loads in turn, so that the machine is the same for both.

``__main__``  starts the processes, takes the samples in turn, and prints one row for each load
``loads``     the loads; only of calls that both versions have
``child``     a process that imports one version and runs the loads
"""
