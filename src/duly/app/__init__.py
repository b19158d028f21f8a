"""The application: `Duly`, its async twin, and what operators decide about functions and queues."""

from duly.app.duly import ASGIApp as ASGIApp
from duly.app.duly import Duly as Duly
