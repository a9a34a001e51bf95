"""coremltools' own tests, from its installed wheel and unmodified, on coremill.

`python -m oracle.coremltools_tests` runs them and prints the pass rate of each file. The tests believe that they run on
macOS 15, so they also predict; coremill's engine answers. There are two ways to run a file:

* `dropin`: `coremill.coremltools` takes the place of coremltools' public interface (`dropin.py`).
* `engine`: coremltools makes the models, with its builder for instance; coremill only predicts (`engine.py`).

`unsupported.json` lists the cases that cannot pass, each with its reason. All others must pass.
"""
