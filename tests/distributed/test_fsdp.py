"""A model whose parameters FSDP2 divides trains and predicts as in one process."""

import torch
from tests.distributed import work
from tests.distributed.group import Processes
from tests.distributed.test_sharding import near


def test_training_is_that_of_one_process(processes: Processes) -> None:
    network = work.model_of("rotary", dropout=0.0).train()
    losses, gradients = work.train(network, work.tokens_of(7))
    with torch.no_grad():
        read, state = network.read(work.tokens_of(4))
        predicted = [read, network.read(work.tokens_of(2), state)[0], network.advance(work.tokens_of(4))[0]]
    answers = processes.run(2, "fully_sharded")
    for step, loss in enumerate(losses):
        assert abs(sum(answer[0][step] for answer in answers) / 2 - loss) < 1e-12
    for _, shared, parameters, logits in answers:
        assert [name for name in gradients if not near(shared[name], gradients[name])] == []
        assert [name for name, x in network.state_dict().items() if not near(parameters[name], x)] == []
        assert all(near(x, y) for x, y in zip(logits, predicted, strict=True))
