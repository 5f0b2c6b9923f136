"""A shop: FastAPI, SQLAlchemy and Tenure on one PostgreSQL. An order and its job are committed together.

DATABASE_URL=postgresql://… uvicorn shop:api
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import tenure
from tenure.integrations.fastapi import Enqueue, lifespan

DATABASE_URL = os.environ["DATABASE_URL"]
engine = create_async_engine(make_url(DATABASE_URL).set(drivername="postgresql+psycopg"))
sessions = async_sessionmaker(engine, expire_on_commit=False)
app = tenure.App(DATABASE_URL)


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """An order."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    amount: Mapped[int]
    confirmed: Mapped[bool] = mapped_column(default=False)


@app.task(queue="mail", max_attempts=5, timeout=30)
async def confirm(order_id: int) -> str:
    """Confirm an order by mail."""
    async with sessions.begin() as session:
        order = await session.get_one(Order, order_id)  # it is there: order and job were committed together
        print(f"Dear {order.email}, thank you for order {order.id}", flush=True)
        order.confirmed = True
        return order.email


async def open_session() -> AsyncIterator[AsyncSession]:
    """A session whose transaction is committed after the route, and rolled back when the route raises."""
    async with sessions.begin() as session:
        yield session


# scope="function": the commit comes before the response, so that a client never reads 201 of an order that was lost.
Session = Annotated[AsyncSession, Depends(open_session, scope="function")]
EnqueueInSession = Annotated[Enqueue, Depends(Enqueue.using(Session), scope="function")]


@asynccontextmanager
async def create_tables(_: FastAPI) -> AsyncIterator[None]:
    """The shop's own lifespan: its tables exist before the first request, and its connections are closed at the end."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


# Here the worker runs inside the server. Beside it: worker=False, and `tenure worker shop:app`.
INSIDE = os.environ.get("WORKER", "inside") == "inside"
api = FastAPI(lifespan=lifespan(app, create_tables, worker=INSIDE, grace=10))


class NewOrder(BaseModel):
    """What a client sends."""

    email: str
    amount: int


@api.post("/orders", status_code=201)
async def create_order(new: NewOrder, session: Session, enqueue: EnqueueInSession) -> dict[str, int]:
    """Store an order and the job that confirms it: both, or nothing."""
    order = Order(email=new.email, amount=new.amount)
    session.add(order)
    await session.flush()
    job = await enqueue(confirm, order.id)
    if new.amount <= 0:
        raise HTTPException(422, "an order has an amount")
    return {"id": order.id, "job": job.id}


@api.get("/orders/{order_id}")
async def show_order(order_id: int, session: Session) -> dict[str, bool]:
    """Show an order."""
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "no such order")
    return {"confirmed": order.confirmed}
