"""Classifiers of torchvision and timm, converted with coremltools' interface; their labels of pictures are torch's.

`python -m oracle.classifiers` traces and exports all 20 models, converts them with `ImageType` and `ClassifierConfig`, and
compares label and probabilities with torch: for the converted model, from its package, from its compiled model, and after
edits. `oracle/tests/test_classifiers.py` runs a sample.
"""
