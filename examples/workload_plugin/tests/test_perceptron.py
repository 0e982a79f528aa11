"""Check that the closed form agrees with the model that is built."""

from gpuproof_example_workload import PERCEPTRON, PerceptronOptions


def test_the_parameters_are_those_of_the_model() -> None:
    options = PerceptronOptions(hidden=16)
    shape = PERCEPTRON.input_shape(options, 8, 10)
    work = PERCEPTRON.work(options, shape)
    model = PERCEPTRON.resolve_implementation()(options, shape)
    assert work is not None
    assert work.num_parameters == sum(p.numel() for p in model.parameters()) == 193 * 16 + 17 * 10
