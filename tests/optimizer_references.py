"""AdamW, StableAdamW, LAMB and Muon, written from their papers in float64, one parameter after the other."""

import torch
from torch import Tensor


class Reference:
    """The weights, moments and step of some parameters; `step` takes one by their gradients."""

    def __init__(self, weights: list[Tensor], decays: list[float], lr: float, betas: tuple, eps: float) -> None:
        self.weights = [weight.detach().double().clone() for weight in weights]
        self.decays, self.lr, (self.beta1, self.beta2), self.eps = decays, lr, betas, eps
        self.first = [torch.zeros_like(weight) for weight in self.weights]
        self.second = [torch.zeros_like(weight) for weight in self.weights]
        self.t = 0

    def step(self, gradients: list[Tensor]) -> None:
        self.t += 1
        for index, gradient in enumerate(gradients):
            self.update(index, gradient.double())


class AdamW(Reference):
    """Loshchilov and Hutter 2019, algorithm 2."""

    def update(self, index: int, g: Tensor) -> None:
        m = self.first[index] = self.beta1 * self.first[index] + (1 - self.beta1) * g
        v = self.second[index] = self.beta2 * self.second[index] + (1 - self.beta2) * g**2
        m_hat, v_hat = m / (1 - self.beta1**self.t), v / (1 - self.beta2**self.t)
        theta = self.weights[index]
        self.weights[index] = theta - self.lr * (m_hat / (v_hat.sqrt() + self.eps) + self.decays[index] * theta)


class StableAdamW(Reference):
    """Wortsman et al. 2023, algorithm 2, whose moments v and u are corrected through their betas."""

    def update(self, index: int, g: Tensor) -> None:
        beta1_hat = self.beta1 * (1 - self.beta1 ** (self.t - 1)) / (1 - self.beta1**self.t)
        beta2_hat = self.beta2 * (1 - self.beta2 ** (self.t - 1)) / (1 - self.beta2**self.t)
        v = self.first[index] = beta1_hat * self.first[index] + (1 - beta1_hat) * g
        u = self.second[index] = beta2_hat * self.second[index] + (1 - beta2_hat) * g**2
        rms = (g**2 / u.clamp(min=self.eps**2)).mean().sqrt()
        eta = self.lr / max(1.0, float(rms))
        theta = self.weights[index]
        self.weights[index] = theta - eta * self.decays[index] * theta - eta * v / (u.sqrt() + self.eps)


class Lamb(Reference):
    """You et al. 2020, algorithm 2, phi the identity; no trust ratio without weight decay, as in NVIDIA's code."""

    def update(self, index: int, g: Tensor) -> None:
        m = self.first[index] = self.beta1 * self.first[index] + (1 - self.beta1) * g
        v = self.second[index] = self.beta2 * self.second[index] + (1 - self.beta2) * g**2
        m_hat, v_hat = m / (1 - self.beta1**self.t), v / (1 - self.beta2**self.t)
        x, decay = self.weights[index], self.decays[index]
        update = m_hat / (v_hat.sqrt() + self.eps) + decay * x
        ratio = 1.0
        if decay and x.norm() > 0 and update.norm() > 0:
            ratio = float(x.norm() / update.norm())
        self.weights[index] = x - self.lr * ratio * update


class Muon(Reference):
    """Jordan et al. 2024, with Nesterov's momentum as a mean; scaled as in Liu et al. 2025, equation 4."""

    def update(self, index: int, g: Tensor) -> None:
        momentum = self.first[index] = 0.95 * self.first[index] + 0.05 * g
        x = 0.05 * g + 0.95 * momentum
        x = x / max(float(x.norm()), 1e-7)
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
        theta = self.weights[index]
        step = 0.2 * max(x.shape) ** 0.5 * x
        self.weights[index] = theta - self.lr * (step + self.decays[index] * theta)


REFERENCES = {"adamw": AdamW, "stableadamw": StableAdamW, "lamb": Lamb}
