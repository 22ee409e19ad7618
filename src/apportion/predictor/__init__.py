"""What we believe about each prompt before it is sampled."""

from apportion.predictor.base import Predictor
from apportion.predictor.baselines import MovingAverage, Oracle, Ridge
from apportion.predictor.beta import Beta
from apportion.predictor.filter_bank import FilterBank
from apportion.predictor.gaussian_process import GaussianProcess
from apportion.predictor.vip import VIP

__all__ = [
    "VIP",
    "Beta",
    "FilterBank",
    "GaussianProcess",
    "MovingAverage",
    "Oracle",
    "Predictor",
    "Ridge",
]
