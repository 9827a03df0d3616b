"""A notebook: a local cluster, a fit, its results, a report, an interrupted cell, and a fit again."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = (
    """
import os, signal
import numpy as np
import dfact
from distributed import Client, LocalCluster
cluster = LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0")
client = Client(cluster)
rng = np.random.default_rng(0)
answers = rng.binomial(4, rng.dirichlet(np.ones(2), 5000) @ rng.random((2, 8))).astype(float)
data = dfact.import_array(answers, "answers.zarr")
""",
    "model = dfact.ICQF(2, random_state=0, max_iter=8, executor=client, callbacks=[dfact.Progress('fit')]).fit(data)\nmodel",
    "model.transform(data).shape",
    "dfact.write_report(model, 'report.html', data)",
    """
def interrupt(iteration):
    if iteration.number == 3:
        os.kill(os.getpid(), signal.SIGINT)  # the square button
try:
    dfact.ICQF(2, random_state=0, max_iter=8, executor=client, callbacks=[interrupt]).fit(data)
except KeyboardInterrupt:
    print("interrupted")
""",
    "again = dfact.ICQF(2, random_state=0, max_iter=8, executor=client).fit(data)\n(again.components_ == model.components_).all()",
    """
client.close()
cluster.close()
alone = dfact.ICQF(2, random_state=0, max_iter=8).fit(data)
(alone.components_ == model.components_).all()
""",
)


@pytest.mark.further
@pytest.mark.cluster
@pytest.mark.process
def test_a_notebook_from_cluster_to_report_survives_an_interrupted_cell(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    [fitted] = [output for output in outputs[1] if output.output_type == "execute_result"]
    assert "leading items" in fitted.data["text/html"]
    assert any("8/8" in str(output) for output in outputs[1])  # the progress bar, as text or as a widget
    results = [[output.data["text/plain"] for output in cell if "data" in output] for cell in (outputs[2], outputs[5], outputs[6])]
    assert results == [["(5000, 2)"], ["np.True_"], ["np.True_"]]
    assert (tmp_path / "report.html").read_bytes().startswith(b"<!DOCTYPE html>")
    assert any("interrupted" in output.get("text", "") for output in outputs[4])
