# The verbs of the project. Each makes the environment it needs first.

PYTHON ?=
URL ?=
PROMPT ?= Why is the sky blue? Answer in one short paragraph.
PY := .venv/bin/python
CONSTRAINTS := constraints/colab-tpu-2026-08.txt
NAMES ?=
CHAPTERS ?= chapters/*.py
TESTS ?=
LAB ?=
TPU ?=

# One cache of compiled programs for all that runs here.
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/build/jax-cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := 0
# Colab's debugger warns about Python 3.13 at each kernel's start.
export PYDEVD_DISABLE_FILE_VALIDATION := 1
# as they were written: neither make nor the shell reads them
export DFLASH_LITE_PROMPT = $(value PROMPT)
export DFLASH_LITE_URL = $(value URL)

# $(call setup,folder,extras,Python versions,more options); PYTHON reaches it as a variable
setup = @python=$$(VENV=$(1) sh tools/find_python.sh $(3)) && \
	"$$python" tools/setup.py $(1) --extras "$(2)" $(4)
# after a crash xdist would wait forever for a worker that it replaced
pytest = -m pytest -q -n 2 --dist loadfile --max-worker-restart 0
elsewhere = --ignore tests/browser --ignore tests/tpu
tests = $(pytest) $(elsewhere) tests
lax = $(pytest) --nbval-lax --nbval-current-env
# What depends on the versions; tools, prompts and pages are tested once. Chapters come first: a
# long file should not begin last.
once = $(foreach name,bench benchmark pipeline prompts record_demo setup tpu_check traces training_runs,\
	--ignore tests/test_$(name).py)
versions = $(lax) $(elsewhere) $(once) $(TESTS) $(CHAPTERS) tests
strict = $(pytest) --nbval --nbval-current-env --nbval-sanitize-with tools/sanitize.cfg

.DEFAULT_GOAL := help
.PHONY: help demo test test-311 test-colab test-student test-browser tpu-check tpu-check-colab lab \
	package notebooks student book bench address

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: ## a real language model answers a question (PROMPT="…" for yours)
	$(call setup,.venv)
	@env -u JAX_COMPILATION_CACHE_DIR .venv/bin/dflash-lite generate -- "$$DFLASH_LITE_PROMPT"

test: ## all that must pass, with the newest versions
	$(call setup,.venv,book notebooks test)
	$(PY) tools/tangle.py --check
	$(PY) -m ruff check .
	$(PY) tools/notebooks.py --check
	$(PY) $(tests)
	$(PY) $(strict) --keep-outputs chapters/*.ipynb
	$(PY) -m sphinx -W --keep-going -q -b html -c book . build/html

test-311: ## package tests and chapters on Python 3.11 (CHAPTERS= for none)
	$(call setup,.venv-311,test,3.11)
	.venv-311/bin/python $(versions)

test-colab: ## package tests and chapters with the versions of Colab's TPU runtime
	$(call setup,.venv-colab,test,3.13,--constraints $(CONSTRAINTS))
	.venv-colab/bin/python $(versions)

test-student: ## package tests and the learner's edition of all chapters, with Colab's versions
	$(call setup,.venv-colab,test,3.13,--constraints $(CONSTRAINTS))
	.venv-colab/bin/python tools/student.py
	DFLASH_LITE_CHECK=lenient .venv-colab/bin/python $(versions)

test-student: CHAPTERS = $(patsubst chapters/%.py,build/student/%.ipynb,$(wildcard chapters/*.py))

test-browser: book ## the book in a real Chromium
	$(call setup,.venv,book browser test)
	CHROMIUM=$$(sh tools/browser.sh) && CHROMIUM=$$CHROMIUM $(PY) $(pytest) tests/browser

tpu-check: ## compile every program for TPUs that are not there (TPU="--chip v5e --only decode")
	$(call setup,.venv-tpu,test tpu,3.13)
	.venv-tpu/bin/python -m pytest -q tests/tpu
	.venv-tpu/bin/python -m tpu_check $(TPU)

# Colab's own libtpu crashes without a chip; the one that its jax asks for does not
tpu-check-colab: ## the same with Colab's versions
	@mkdir -p build && grep -v '^libtpu==' $(CONSTRAINTS) > build/colab-tpu.txt
	$(call setup,.venv-tpu-colab,test tpu,3.13,--constraints build/colab-tpu.txt)
	.venv-tpu-colab/bin/python -m pytest -q tests/tpu
	.venv-tpu-colab/bin/python -m tpu_check --results bench/results/tpu_colab.json $(TPU)

lab: ## JupyterLab, with the chapters as notebooks (LAB="--no-browser", or --allow-root for root)
	$(call setup,.venv,notebooks)
	JUPYTER_CONFIG_PATH='$(CURDIR)/tools/jupyter' JUPYTER_PATH='$(CURDIR)/tools/jupyter' \
		$(PY) -m jupyterlab --LabApp.default_url=/lab/tree/chapters $(LAB)

package: ## write dflash_lite/ from the chapters
	$(call setup,.venv,test)
	$(PY) tools/tangle.py

notebooks: package ## run the chapters and write their notebooks (NAMES="01 02" for some)
	$(call setup,.venv,test)
	$(PY) tools/notebooks.py $(NAMES)

student: ## the learner's edition, in build/student/
	$(call setup,.venv,test)
	$(PY) tools/student.py

book: ## the web pages, in build/html/
	$(call setup,.venv,book)
	$(PY) -m sphinx -W --keep-going -q -b html -c book . build/html
	@echo "Open build/html/index.html"

bench: ## speed, beside other libraries
	$(call setup,.venv,test)
	$(PY) -m bench
	$(PY) -m bench.paging
	$(PY) -m bench.speculation
	$(PY) -m bench.sweep
	$(PY) -m bench.exactness

address: ## change the repository's public address everywhere (URL=https://github.com/…)
	$(call setup,.venv,test)
	$(PY) tools/address.py "$$DFLASH_LITE_URL"
