import type { flows as english } from "../en/flows";
import type { Translation } from "../types";

export const flows: Translation<typeof english> = {
  title: "Flujos",
  intro: "Lo que guía a tus agentes: aquí se dibuja, se prueba y se publica.",
  empty: "Todavía no hay flujos",
  emptyText: "Crea el primero: ponle un nombre, dibuja sus tareas, habla con él y publícalo.",
  create: "Crear un flujo",
  name: "Nombre",
  campaign: "Campaña",
  campaignHint: "Los flujos de una campaña van juntos.",
  search: "Buscar flujos",
  noneFound: "Ningún flujo coincide con «{text}».",
  tags: "Etiquetas",
  noTags: "sin publicar",
  changed: "Último cambio",
  changedBy: "{when} por {who}",
};
