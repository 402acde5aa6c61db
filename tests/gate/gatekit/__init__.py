"""What the tests of the gate share. `conftest.py` puts its folder on the path, also for the processes of tests."""
