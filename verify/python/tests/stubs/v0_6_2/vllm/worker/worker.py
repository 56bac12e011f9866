import stub_model
import stub_ranks


class Worker(stub_ranks.Worker):
    def load_model(self, folder):
        model = stub_model.load(folder, old=True, gathers=True)
        self.model_runner, self.decoder, self.lm_head = stub_ranks.Runner(model), model.model, model.lm_head
