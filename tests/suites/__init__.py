"""What every implementation of something keeps to: classes whose subclasses lie in the tests of a layer and bring the implementation.

Pytest collects them there alone, as no file here is called ``test_*``. A test that holds for all implementations belongs here.
"""
