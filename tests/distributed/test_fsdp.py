"""A model whose parameters FSDP2 divides trains and predicts as in one process."""

import pytest
import torch
from tests.distributed import work
from tests.distributed.group import Processes
from tests.distributed.test_sharding import near


@pytest.mark.parametrize("kind", work.DIVIDED)
def test_training_is_that_of_one_process(kind: str, processes: Processes) -> None:
    build, loss_of, predict = work.DIVIDED[kind]
    network = build()
    losses, gradients = work.train(network, loss_of, work.tokens_of(7))
    with torch.no_grad():
        predicted = predict(network.eval())
    answers = processes.run(2, "fully_sharded", kind)
    for step, loss in enumerate(losses):
        assert abs(sum(answer[0][step] for answer in answers) / 2 - loss) < 1e-12
    for _, shared, parameters, logits in answers:
        assert [name for name in gradients if not near(shared[name], gradients[name])] == []
        assert [name for name, x in network.state_dict().items() if not near(parameters[name], x)] == []
        assert all(near(x, y) for x, y in zip(logits, predicted, strict=True))
