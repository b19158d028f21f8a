"""The application: `Duly`, its async twin, and operator controls for functions and queues."""

from duly.app.duly import ASGIApp as ASGIApp
from duly.app.duly import Duly as Duly
